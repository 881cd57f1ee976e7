"""What came instead of a result: hazards, exceptions, and processes that ended. Each a verdict."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from shardlab.judge.source import SubmissionSource
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.process import ExitReason

_OF_FINDING = {
    "hazard.deadlock": "HANG",
    "hazard.mismatched_collectives": "HANG",
    "hazard.replicas_differ": "REPLICAS",
    "spec.unknown_axis": "SPEC",
    "spec.rank": "SPEC",
    "spec.indivisible": "SPEC",
    "spec.wrong_argument": "SPEC",
}
# The families of what JAX refuses; any other is an exception like those of the answer's own.
_OF_REFUSAL = {
    **dict.fromkeys(("replication", "carry", "branches", "partly_varying"), "VMA"),
    **dict.fromkeys(("tree", "uneven_collective", "not_a_spec", "twice", "explicit"), "SPEC"),
}
# What JAX says where there is no finding beside its words, as on virtual devices.
_OF_WORDS = {
    "require replication which can't be statically inferred": "VMA",
    "manual axis types do not match": "VMA",
    "can only accept axis_name which corresponds to one of": "VMA",
    "pytree structure error": "SPEC",
    "must be a pytree of `jax.sharding.PartitionSpec`": "SPEC",
    "must be divisible by shard_count": "SPEC",
    "has to be divisible by the size of the named axis": "SPEC",
    "unbound axis name": "SPEC",
    "Resource axis": "SPEC",
    "which is not a valid axis name": "SPEC",
}
_MEANS = {
    "VMA": "JAX cannot prove that an output is the same on every device, as its out_specs say.",
    "SPEC": "A spec does not fit its array or the mesh.",
}
_FIXES = {
    "VMA": "sum or average it over that mesh axis, or name the axis in out_specs so that the "
    "pieces are joined.",
    "SPEC": "",
}
# Families of what keeps an answer from being judged at all, told by the author.
_OF_FAMILY = {
    "missing_function": "CE",
    "not_callable": "CE",
    "signature": "CE",
    "no_result": "SHAPE",
    "not_a_value": "SHAPE",
    "not_an_array": "SHAPE",
    "dtype": "DTYPE",
    "own_devices": "SPEC",
}
_MOST_LINES = 6


def hazards(header: Mapping[str, Any], source: SubmissionSource) -> list[Verdict]:
    """Return a verdict for each grave finding about the traced program, the same one once."""
    words = str(header.get("error", {}).get("words", ""))
    found: dict[tuple[str, str, str], Verdict] = {}
    for each in header.get("findings", ()):
        if each.get("severity") == "error":
            verdict = _of_finding(each, source, words)
            found.setdefault((verdict.code, verdict.what, verdict.where), verdict)
    return list(found.values())


def _of_finding(each: Mapping[str, Any], source: SubmissionSource, words: str) -> Verdict:
    code = _OF_FINDING.get(each["code"], "RTE")
    if each["code"] == "jax.rejected":
        code = _OF_REFUSAL.get(str(each["cause"]), "RTE")
    line = (each["where"] or {}).get("line")
    shows = tuple(map(str, each["shows"]))
    what, fix = str(each["what"]), str(each["fix"])
    if code == "SPEC":
        what, shows = _jax_first(what, shows, words)
    details = {"finding": each["code"]}
    return Verdict(
        code=code, what=what, where=source.place(line), fix=fix, shows=shows, details=details
    )


def _jax_first(ours: str, shows: tuple[str, ...], words: str) -> tuple[str, tuple[str, ...]]:
    """Return JAX's own first line as the sentence, with ours beneath it."""
    if shows and shows[0].startswith("JAX: "):
        return shows[0], (*shows[1:_MOST_LINES], ours)
    first = next((line.strip() for line in words.splitlines() if line.strip()), "")
    return (f"JAX: {first}", (ours, *shows)) if first else (ours, shows)


def raised(error: Mapping[str, Any], source: SubmissionSource) -> Verdict:
    """Return the verdict on an exception: what JAX refuses by its words, all else RTE."""
    kind, words = str(error.get("kind", "Exception")), _lasting(error.get("words", ""))
    family, fix = str(error.get("family", "")), str(error.get("fix", ""))
    where, ours = source.place(error.get("line")), _lasting(error.get("what", ""))
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    head, more = f"{kind}: {lines[0]}" if lines else kind, tuple(lines[1:_MOST_LINES])
    if family in _OF_FAMILY:
        return Verdict(code=_OF_FAMILY[family], what=ours or head, where=where, fix=fix)
    code = next((c for text, c in _OF_WORDS.items() if text in words), "RTE")
    if code == "VMA":
        return Verdict(
            code=code,
            what=_MEANS[code],
            where=where,
            fix=_FIXES[code],
            shows=(f"JAX: {head}", *more),
        )
    if code == "SPEC":
        return Verdict(code=code, what=f"JAX: {head}", where=where, shows=(*more, _MEANS[code]))
    if kind == "MemoryError" or "RESOURCE_EXHAUSTED" in words:
        return Verdict(
            code="MLE", what=f"The memory limit was reached: {head}.", where=where, shows=more
        )
    if kind == "NotImplementedError" and not lines:
        return Verdict(
            code="RTE", what="NotImplementedError: this part is not written yet.", where=where
        )
    details = {"exception": kind}
    if ours:  # the exception's own words are about what is inside of JAX
        shows = () if ours in head or kind == "SystemExit" else (head,)
        return Verdict(code="RTE", what=ours, where=where, fix=fix, shows=shows, details=details)
    return Verdict(code="RTE", what=head, where=where, fix=fix, shows=more, details=details)


def _lasting(words: object) -> str:
    """Return words without addresses, which are others in every process.

    >>> _lasting("<object object at 0x7f43ef7d9bc0>")
    '<object object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(words or ""))


def not_loaded(error: Mapping[str, Any], source: SubmissionSource) -> Verdict:
    """Return the verdict on an answer that cannot be executed."""
    kind, words = str(error.get("kind", "Exception")), _lasting(error.get("words", ""))
    words = re.sub(r" \(answer\.py, line \d+\)$", "", words)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    head = f"{kind}: {lines[0]}" if lines else kind
    if kind == "SystemExit":  # its words are a number
        head, lines = str(error.get("what") or head), []
    return Verdict(
        code="CE",
        what=head,
        where=source.place(error.get("line")),
        shows=tuple(lines[1:_MOST_LINES]),
    )


def must_raise(
    error: Exception, told: Mapping[str, Any] | None, source: SubmissionSource
) -> list[Verdict]:
    """Compare what was raised with what must be: the same kind of exception."""
    name = type(error).__name__
    if told is None:
        what = f"It returns a result where it should raise {name} ({error})."
        return [Verdict(code="WA", what=what, details={"must_raise": name})]
    if name in told.get("parents", ()):
        return []
    verdict = raised(told, source)
    what = f"It raises {told.get('kind')} where it should raise {name} ({error})."
    return [
        Verdict(
            code=verdict.code, what=what, where=verdict.where, shows=(verdict.what, *verdict.shows)
        )
    ]


# --------------------------------------------------------------------- processes that ended

# Raised by nobody but the answer's own work; other signals come from outside.
_CRASHES = {
    int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
}
# XLA's own words where devices wait for each other, before it ends the process for that.
_STUCK = re.compile(r"rendezvous|may be stuck", re.IGNORECASE)
_ENDLESS = "look for a loop whose end is never reached."
_UNROLLED = (
    "a Python loop over the devices is unrolled, and for many devices takes long to compile: "
    "jax.lax.fori_loop or jax.lax.scan compile its body once. Otherwise look for a loop whose end "
    "is never reached."
)
_IDLE = 2.0  # seconds without the processor: a program waits for nothing but other devices


def signal_of(ending: ExitReason) -> int | None:
    """Return the signal that ended a process, also where it is told as a negative exit code."""
    if ending.signal:
        return ending.signal
    code = ending.exit_code
    return -code if code is not None and code < 0 else None


def is_ours(ending: ExitReason) -> bool:
    """Say whether a process ended for a reason that the answer has no part in."""
    if ending.is_own:
        return False
    if ending.why in ("signal", "exit"):
        number = signal_of(ending)
        return number is not None and number not in _CRASHES
    return ending.why not in ("time", "memory", "output", "frame")


def is_worth_retrying(ending: ExitReason) -> bool:
    """Say whether a process may have ended through no fault of the answer.

    A pipe that broke may be the trace of a process that somebody killed.
    """
    return is_ours(ending) or ending.why == "frame"


def ended(ending: ExitReason, doing: str, output: str = "") -> Verdict:
    """Return the verdict on a process that ended before it answered.

    `doing` says what it was at: importing the answer, tracing it, running its program.
    """
    if is_ours(ending):
        why = ending.detail or _told(ending)
        return fault(f"the process {doing} was ended ({why})")
    if doing == "running the program" and _is_stuck(ending, output):
        return Verdict(
            code="HANG",
            what="Devices waited for each other in a collective and never met.",
            fix="let every device call the same collectives in the same order.",
        )
    if ending.why == "time":
        return Verdict(
            code="TLE",
            what=f"The time limit was reached{_after(ending)} while {doing}.",
            fix=_UNROLLED if doing == "simulating the answer" else _ENDLESS,
        )
    if ending.why == "memory":
        return Verdict(
            code="MLE", what=f"The memory limit was reached while {doing}. {ending.detail}".strip()
        )
    if ending.why == "output":
        return Verdict(
            code="OLE", what=f"More was printed or returned than is allowed, while {doing}."
        )
    if ending.why == "frame":
        return Verdict(code="RTE", what=f"Something else than a result came back while {doing}.")
    return Verdict(code="RTE", what=f"The process ended by itself while {doing} ({_told(ending)}).")


# How the interpreter begins to say where every thread is.
_LAST_WORDS = re.compile(r"^(Timeout \(|Fatal Python error|Thread 0x|Current thread)", re.MULTILINE)
_LINE = re.compile(r'File "answer\.py", line (\d+)')


def last_words(output: str) -> tuple[str, str]:
    """Return what an answer printed, and what its interpreter said of it in the end.

    >>> last_words("hello\\nTimeout (0:00:02)!\\nThread 0x1:\\n")
    ('hello\\n', 'Timeout (0:00:02)!\\nThread 0x1:\\n')
    """
    found = _LAST_WORDS.search(output)
    at = found.start() if found else len(output)
    return output[:at], output[at:]


def last_line(said: str) -> int | None:
    """Return the line of the answer that was being executed, where the interpreter says so."""
    found = _LINE.search(said)
    return int(found[1]) if found else None


def _is_stuck(ending: ExitReason, output: str) -> bool:
    if ending.why == "time" and ending.idle_seconds > _IDLE:
        return True
    return ending.why in ("time", "signal") and bool(_STUCK.search(output))


def fault(why: str) -> Verdict:
    """Return the verdict on a fault of the judge's own."""
    return Verdict(
        code="IE",
        what=f"The judge failed: {why}.",
        fix="submit again; this is not counted as an attempt.",
    )


def _told(ending: ExitReason) -> str:
    number = signal_of(ending)
    if number:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit code {ending.exit_code}" if ending.exit_code is not None else ending.why


def _after(ending: ExitReason) -> str:
    return f" ({ending.detail})" if ending.detail else ""
