"""What is said where there is no result: each kind of end has words of its own."""

import signal

import pytest

from shardlab.judge import failures as troubles
from shardlab.judge.source import SubmissionSource
from shardlab.sandbox.process import ExitReason

SOURCE = SubmissionSource("import jax\ndef f(x):\n    return g(x)\n")


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        (ExitReason(why="time"), "TLE", "The time limit was reached while running the program."),
        (
            ExitReason(why="memory"),
            "MLE",
            "The memory limit was reached while running the program.",
        ),
        (ExitReason(why="output"), "OLE", "More was printed or returned than is allowed"),
        (
            ExitReason(why="exit", exit_code=3),
            "RTE",
            "ended by itself while running the program (exit code 3)",
        ),
        (ExitReason(why="signal", signal=signal.SIGSEGV), "RTE", "(SIGSEGV)"),
        (ExitReason(why="exit", exit_code=-11), "RTE", "(SIGSEGV)"),
        (
            ExitReason(why="frame", detail="too long"),
            "RTE",
            "Something else than a result came back",
        ),
        (ExitReason(why="signal", signal=signal.SIGKILL), "IE", "was ended (SIGKILL)"),
        (ExitReason(why="exit", exit_code=-15), "IE", "was ended (SIGTERM)"),
        (ExitReason(why="judge", detail="the supervisor was killed"), "IE", "The judge failed"),
    ],
)
def test_each_end_of_a_process_has_its_own_message(ending, code, words):
    verdict = troubles.ended(ending, "running the program")
    assert verdict.code == code
    assert words in verdict.what


def test_devices_that_wait_for_each_other_are_no_time_out():
    said = "rendezvous.cc:127] This thread has been waiting for `first call` and may be stuck."
    for ending in (ExitReason(why="time"), ExitReason(why="signal", signal=signal.SIGABRT)):
        assert troubles.ended(ending, "running the program", said).code == "HANG"
    assert troubles.ended(ExitReason(why="time"), "tracing the answer", said).code == "TLE"
    idle = ExitReason(why="time", seconds=20.0, idle_seconds=18.5)
    assert troubles.ended(idle, "running the program").code == "HANG"
    busy = ExitReason(why="time", seconds=20.0, idle_seconds=0.5)
    assert troubles.ended(busy, "running the program").code == "TLE"


def test_a_time_out_on_virtual_devices_tells_of_unrolled_loops():
    ending = ExitReason(why="time", detail="20 s of processor time", idle_seconds=0.0)
    verdict = troubles.ended(ending, "simulating the answer")
    assert "(20 s of processor time) while simulating" in verdict.what
    assert "jax.lax.fori_loop" in verdict.fix
    assert "fori_loop" not in troubles.ended(ending, "tracing the answer").fix


@pytest.mark.parametrize(
    ("error", "code", "what"),
    [
        (
            {"kind": "NameError", "words": "name 'g' is not defined", "line": 3},
            "RTE",
            "NameError: name",
        ),
        ({"kind": "NotImplementedError", "words": ""}, "RTE", "this part is not written yet"),
        ({"kind": "ValueError", "words": "a\n\nb"}, "RTE", "ValueError: a"),
        (
            {
                "kind": "ValueError",
                "words": "out_specs require replication which can't be "
                "statically inferred given the mesh",
            },
            "VMA",
            "JAX cannot prove",
        ),
        (
            {"kind": "NameError", "words": "unbound axis name: dta"},
            "SPEC",
            "JAX: NameError: unbound",
        ),
        (
            {"family": "signature", "what": "f() takes no x.", "fix": "write def f(x)."},
            "CE",
            "f() takes",
        ),
        (
            {"family": "no_result", "what": "f returned None.", "fix": ""},
            "SHAPE",
            "f returned None.",
        ),
        ({}, "RTE", "Exception"),
    ],
)
def test_an_exception_is_told_with_its_line_and_its_words(error, code, what):
    verdict = troubles.raised(error, SOURCE)
    assert verdict.code == code
    assert what in verdict.what
    assert verdict.where == ("line 3: return g(x)" if error.get("line") else "")


def test_an_answer_that_exits_is_told_in_our_words_and_never_in_those_of_jax():
    what = "The answer ends the process (sys.exit)."
    error = {"kind": "SystemExit", "words": "0", "line": 3, "family": "exit", "what": what}
    for verdict in (troubles.raised(error, SOURCE), troubles.not_loaded(error, SOURCE)):
        assert (verdict.what, verdict.where, verdict.shows) == (what, "line 3: return g(x)", ())


def test_a_refusal_is_told_in_the_words_of_jax_and_then_in_ours():
    finding = {
        "code": "spec.rank",
        "severity": "error",
        "what": "The spec is too long.",
        "where": {"line": 2},
        "fix": "shorten it.",
        "cause": "",
        "shows": [],
    }
    header = {"error": {"words": "spec P('x', 'y') is too long\nfor rank 1"}, "findings": [finding]}
    (verdict,) = troubles.hazards(header, SOURCE)
    assert verdict.what == "JAX: spec P('x', 'y') is too long"
    assert verdict.shows == ("The spec is too long.",)
    assert verdict.where == "line 2: def f(x):"


def test_a_warning_is_no_verdict():
    finding = {"severity": "warning", "code": "hazard.psum_of_replicated"}
    assert troubles.hazards({"findings": [finding]}, SOURCE) == []


def test_another_exception_than_the_one_asked_for_is_told_with_both():
    told = {"kind": "KeyError", "words": "'x'", "parents": ["KeyError", "LookupError", "Exception"]}
    (verdict,) = troubles.must_raise(ValueError("3 does not divide 7"), told, SOURCE)
    assert verdict.code == "RTE"
    assert (
        verdict.what == "It raises KeyError where it should raise ValueError (3 does not divide 7)."
    )
    told["parents"] = ["IndivisibleError", "ValueError", "Exception"]
    assert troubles.must_raise(ValueError("3 does not divide 7"), told, SOURCE) == []
