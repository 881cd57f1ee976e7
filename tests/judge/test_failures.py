"""Verdicts without a result: each way to fail has its own message."""

import signal

import pytest

from shardlab.judge import failures
from shardlab.judge.protocol.reports import ExceptionReport, FindingReport
from shardlab.judge.submission_source import SubmissionSource
from shardlab.sandbox.process import ExitReason

SOURCE = SubmissionSource("import jax\ndef f(x):\n    return g(x)\n")


@pytest.mark.parametrize(
    ("reason", "code", "what"),
    [
        (ExitReason(kind="time"), "TLE", "The time limit was reached while running the program."),
        (
            ExitReason(kind="memory"),
            "MLE",
            "The memory limit was reached while running the program.",
        ),
        (ExitReason(kind="output"), "OLE", "More was printed or returned than is allowed"),
        (
            ExitReason(kind="exit", exit_code=3),
            "RTE",
            "ended by itself while running the program (exit code 3)",
        ),
        (ExitReason(kind="signal", signal=signal.SIGSEGV), "RTE", "(SIGSEGV)"),
        (ExitReason(kind="exit", exit_code=-11), "RTE", "(SIGSEGV)"),
        (
            ExitReason(kind="protocol", detail="too long"),
            "RTE",
            "something else than a result while running the program (too long)",
        ),
        (ExitReason(kind="signal", signal=signal.SIGKILL), "IE", "was ended (SIGKILL)"),
        (ExitReason(kind="exit", exit_code=-15), "IE", "was ended (SIGTERM)"),
        (ExitReason(kind="internal", detail="the supervisor was killed"), "IE", "The judge failed"),
    ],
)
def test_each_end_of_a_process_has_its_own_message(reason, code, what):
    verdict = failures.exit_verdict(reason, "running the program")
    assert verdict.code == code
    assert what in verdict.what


def test_devices_that_wait_for_each_other_are_a_deadlock_and_no_time_out():
    log = "rendezvous.cc:127] This thread has been waiting for `first call` and may be stuck."
    for reason in (ExitReason(kind="time"), ExitReason(kind="signal", signal=signal.SIGABRT)):
        assert failures.exit_verdict(reason, "running the program", log).code == "HANG"
    assert (
        failures.exit_verdict(ExitReason(kind="time"), "tracing the submission", log).code == "TLE"
    )
    idle = ExitReason(kind="time", seconds=20.0, idle_seconds=18.5)
    verdict = failures.exit_verdict(idle, "running the program")
    assert verdict.code == "HANG"
    assert verdict.what == "Devices block forever in a collective: some of them never reach it."
    busy = ExitReason(kind="time", seconds=20.0, idle_seconds=0.5)
    assert failures.exit_verdict(busy, "running the program").code == "TLE"


def test_a_time_out_on_virtual_devices_mentions_unrolled_loops():
    reason = ExitReason(kind="time", detail="20 s of processor time", idle_seconds=0.0)
    verdict = failures.exit_verdict(reason, "simulating the submission")
    assert "(20 s of processor time) while simulating" in verdict.what
    assert "jax.lax.fori_loop" in verdict.fix
    assert "fori_loop" not in failures.exit_verdict(reason, "tracing the submission").fix


@pytest.mark.parametrize(
    ("report", "code", "what"),
    [
        (
            ExceptionReport(exception_type="NameError", message="name 'g' is not defined", line=3),
            "RTE",
            "NameError: name",
        ),
        (
            ExceptionReport(exception_type="NotImplementedError"),
            "RTE",
            "this part is not written yet",
        ),
        (ExceptionReport(exception_type="ValueError", message="a\n\nb"), "RTE", "ValueError: a"),
        (
            ExceptionReport(
                exception_type="ValueError",
                message="out_specs require replication which can't be statically inferred given "
                "the mesh",
            ),
            "VMA",
            "JAX cannot prove",
        ),
        (
            ExceptionReport(exception_type="NameError", message="unbound axis name: dta"),
            "SPEC",
            "JAX: NameError: unbound",
        ),
        (
            ExceptionReport(family="signature", what="f() takes no x.", fix="write def f(x)."),
            "CE",
            "f() takes",
        ),
        (ExceptionReport(family="no_result", what="f returned None."), "SHAPE", "f returned None."),
        (ExceptionReport(), "RTE", "Exception"),
    ],
)
def test_an_exception_is_reported_with_its_line_and_its_message(report, code, what):
    verdict = failures.exception_verdict(report, SOURCE)
    assert verdict.code == code
    assert what in verdict.what
    assert verdict.where == ("line 3: return g(x)" if report.line else "")


def test_a_submission_that_exits_has_our_message_and_none_of_jax():
    what = "The submission ends the process (sys.exit)."
    report = ExceptionReport(
        exception_type="SystemExit", message="0", line=3, family="exit", what=what
    )
    for make_verdict in (failures.exception_verdict, failures.load_failure_verdict):
        verdict = make_verdict(report, SOURCE)
        assert (verdict.what, verdict.where, verdict.shows) == (what, "line 3: return g(x)", ())


def test_a_rejected_spec_has_the_message_of_jax_first_and_then_ours():
    finding = FindingReport(
        code="spec.rank",
        severity="error",
        what="The spec is too long.",
        line=2,
        fix="shorten it.",
    )
    error = ExceptionReport(message="spec P('x', 'y') is too long\nfor rank 1")
    (verdict,) = failures.finding_verdicts([finding], error, SOURCE)
    assert verdict.what == "JAX: spec P('x', 'y') is too long"
    assert verdict.shows == ("The spec is too long.",)
    assert verdict.where == "line 2: def f(x):"


def test_a_warning_is_no_verdict():
    finding = FindingReport(code="hazard.psum_of_replicated", severity="warning", what="")
    assert failures.finding_verdicts([finding], None, SOURCE) == []


def test_another_exception_than_expected_is_reported_with_both():
    expected = ValueError("3 does not divide 7")
    report = ExceptionReport(
        exception_type="KeyError",
        message="'x'",
        base_types=("KeyError", "LookupError", "Exception"),
    )
    (verdict,) = failures.missing_exception_verdicts(expected, report, SOURCE)
    assert verdict.code == "RTE"
    assert verdict.what == "It raises KeyError; expected ValueError (3 does not divide 7)."
    subclass = ExceptionReport(
        exception_type="IndivisibleError",
        base_types=("IndivisibleError", "ValueError", "Exception"),
    )
    assert failures.missing_exception_verdicts(expected, subclass, SOURCE) == []


def test_the_line_is_that_of_the_last_stack_dump():
    dump = """Timeout (0:00:02)!
Thread 0x00007f (most recent call first):
  File "submission.py", line 4 in helper
  File "submission.py", line 9 in f
Thread 0x00008a (most recent call first):
  File "threading.py", line 1 in wait

Current thread 0x00007f (most recent call first):
  File "submission.py", line 7 in f
  File "tracing.py", line 100 in program
"""
    assert failures.stack_dump_line(dump) == 7
    assert failures.stack_dump_line(dump.partition("\n\n")[0]) == 4
    assert failures.stack_dump_line("") is None
