"""What is concluded from where each process is; the evidence itself is in test_launch.py."""

from __future__ import annotations

from shardlab.cluster.diagnosis import ProcessView, find_failure, find_hang
from shardlab.cluster.messages import KnownCollective, ProcessFailure, Status
from shardlab.errors import (
    CollectiveNotReached,
    LaunchStalled,
    ProcessDied,
    ProcessNeverArrived,
    ProcessRaised,
)
from shardlab.execution.messages import Failure

PSUM = KnownCollective(
    op="psum", mesh_axes=("data",), line="train.py:9 (loss)", is_conditional=False
)
PMAX = KnownCollective(
    op="pmax", mesh_axes=("data",), line="train.py:14 (<lambda>)", is_conditional=True
)
COLLECTIVES = {"step": (PSUM, PMAX)}
LIMIT, WHERE = 10.0, "shardlab launch train.py --on local:3"


def view(process, phase, *, idle=20.0, program="", executed=4, line="", **details):
    status = Status(phase=phase, program=program, n_executed=executed, line=line)
    return ProcessView(process=process, status=status, idle_seconds=idle, **details)


def executing(process, **details):
    return view(process, "executing", program="step", line="train.py:30 (main)", **details)


def failure(process, phase, what, order):
    status = Status(phase=phase, program="step" if phase == "executing" else "")
    raised = Failure(code="program.raised", what=what, where="train.py:5 (main)", fix="that.")
    return ProcessView(
        process=process,
        status=status,
        failure=ProcessFailure(failure=raised, status=status),
        ended_order=order,
    )


def hang(*views):
    return find_hang(views, COLLECTIVES, LIMIT, WHERE)


def test_a_process_that_is_active_is_no_hang_however_long_the_others_wait():
    assert hang(executing(0, idle=5000.0), view(1, "compiling", program="step", idle=0.2)) is None
    assert hang(executing(0, idle=5000.0), view(1, "running", idle=9.9)) is None


def test_processes_that_wait_for_nobody_are_no_hang():
    # All read their data from a slow disk, say.
    assert hang(view(0, "running"), view(1, "running")) is None
    assert hang(view(0, "connecting"), view(1, "connecting")) is None


def test_a_process_in_its_own_lines_does_not_reach_the_first_collective():
    error = hang(executing(0), view(1, "running", line="train.py:44 (log)"), executing(2))
    assert isinstance(error, CollectiveNotReached)
    assert "Processes 0 and 2 wait in 'step', called at train.py:30 (main)" in error.what
    assert "psum over 'data' at train.py:9 (loss), which process 1 does not reach" in error.what
    assert "process 1 runs the program's own lines, at train.py:44 (log)" in error.what


def test_a_process_that_is_done_does_not_reach_it_either():
    error = hang(executing(0), view(1, "finished", is_done=True))
    assert "process 1 has finished the program" in error.what


def test_a_process_past_the_same_execution_took_a_branch_without_a_collective():
    error = hang(executing(0), executing(1, executed=5), executing(2))
    assert "Processes 0 and 2 wait in 'step'" in error.what
    assert "for pmax over 'data' at train.py:14 (<lambda>)" in error.what
    assert "a branch is taken that not all of them take" in error.fix


def test_processes_in_different_programs_at_the_same_place_are_named():
    error = hang(executing(0), executing(1), view(2, "executing", program="evaluate"))
    assert "which process 2 does not reach: process 2 executes 'evaluate'" in error.what


def test_all_in_one_program_lists_the_collectives_in_branches():
    error = hang(executing(0), executing(1))
    assert isinstance(error, LaunchStalled)
    assert "Its collectives in branches and loops: pmax over 'data' at train.py:14" in error.what


def test_a_process_that_is_still_loading_never_arrives():
    waiting = view(0, "connecting", executed=0)
    error = hang(
        waiting, view(1, "starting", executed=0, host="node2", line="train.py:1 (<module>)")
    )
    assert isinstance(error, ProcessNeverArrived)
    assert "1 of 2 processes did not connect to the others: process 1 on node2" in error.what


def test_a_stopped_process_is_reported_as_stopped():
    error = hang(executing(0), view(1, "running", is_stopped=True, pid=77))
    assert "process 1 is stopped (SIGSTOP)" in error.what
    assert "kill -CONT 77" in error.fix


def failed(*views):
    found = find_failure(views, COLLECTIVES, WHERE)
    assert found is not None
    return found.error


def test_a_killed_process_comes_before_the_exceptions_that_it_causes():
    lost_peer = failure(0, "executing", "The program raised: connection closed by peer", 1)
    killed = view(1, "running", ended_by="signal SIGKILL", ended_order=2, pid=99)
    error = failed(lost_peer, killed)
    assert isinstance(error, ProcessDied)
    assert error.what.startswith("Process 1 (pid 99) ended by signal SIGKILL")
    assert "Process 0 waited for it in 'step', for psum over 'data'" in error.what


def test_an_exception_in_host_code_comes_before_one_in_a_collective():
    error = failed(
        failure(0, "executing", "The program raised: connection closed by peer", 1),
        failure(1, "running", "The program raised KeyError: 'lr'", 2),
    )
    assert isinstance(error, ProcessRaised)
    assert error.what == (
        "In process 1: The program raised KeyError: 'lr'. Process 0 waited in 'step'."
    )


def test_an_abort_of_jax_comes_last():
    error = failed(
        view(1, "executing", program="step", ended_by="signal SIGABRT", ended_order=1),
        view(0, "running", ended_by="exit code 7", ended_order=2),
    )
    assert error.what.startswith("Process 0 ended by exit code 7")


def test_the_same_exception_everywhere_is_reported_once():
    what = "The program raised ValueError: odd"
    error = failed(*(failure(process, "running", what, process) for process in range(3)))
    assert error.what == "In processes 0, 1 and 2: The program raised ValueError: odd."
