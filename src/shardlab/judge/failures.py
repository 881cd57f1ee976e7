"""What came instead of a result, as verdicts: findings, exceptions, and processes that ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from shardlab.errors import ReferenceFailed
from shardlab.judge.protocol.reports import ExceptionReport, FindingReport
from shardlab.judge.protocol.requests import RunRequest, SimulateRequest
from shardlab.judge.submission_source import SUBMISSION_FILE, SubmissionSource
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.process import ExitReason

_FINDING_CODES = {
    "hazard.deadlock": "HANG",
    "hazard.mismatched_collectives": "HANG",
    "hazard.replicas_differ": "REPLICAS",
    "spec.unknown_axis": "SPEC",
    "spec.rank": "SPEC",
    "spec.indivisible": "SPEC",
    "spec.wrong_argument": "SPEC",
}
# The causes of a `jax.rejected` finding; every other one is an exception like any.
_REJECTION_CODES = {
    **dict.fromkeys(("replication", "carry", "branches", "partly_varying"), "VMA"),
    **dict.fromkeys(("tree", "uneven_collective", "not_a_spec", "twice", "explicit"), "SPEC"),
}
# Phrases of JAX's messages, for exceptions without a finding, as on virtual devices.
_MESSAGE_CODES = {
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
_VMA_WHAT = (
    "JAX cannot prove that an output is replicated, as its out_specs declare: its value may differ "
    "between devices."
)
_VMA_FIX = (
    "reduce it over that mesh axis (psum, pmean), or name the axis in out_specs so that the shards "
    "are concatenated."
)
_SPEC_WHAT = "A spec does not fit its array or the mesh."
# Families of exceptions that have a code of their own.
_FAMILY_CODES = {
    "missing_function": "CE",
    "not_callable": "CE",
    "signature": "CE",
    "no_result": "SHAPE",
    "not_a_value": "SHAPE",
    "not_an_array": "SHAPE",
    "dtype": "DTYPE",
    "own_devices": "SPEC",
}
_MAX_LINES = 6


# ----------------------------------------------------------------------- findings and exceptions


def finding_verdicts(
    findings: Iterable[FindingReport], error: ExceptionReport | None, source: SubmissionSource
) -> list[Verdict]:
    """Return a verdict for each finding of severity error, without repetitions."""
    message = error.message if error else ""
    verdicts: dict[tuple[str, str, str], Verdict] = {}
    for finding in findings:
        if finding.severity == "error":
            verdict = _finding_verdict(finding, source, message)
            verdicts.setdefault((verdict.code, verdict.what, verdict.where), verdict)
    return list(verdicts.values())


def _finding_verdict(finding: FindingReport, source: SubmissionSource, message: str) -> Verdict:
    code = _FINDING_CODES.get(finding.code, "RTE")
    if finding.code == "jax.rejected":
        code = _REJECTION_CODES.get(finding.cause, "RTE")
    sentence, shows = finding.what, finding.shows
    # For specs JAX's first line names shape, spec and mesh better than we can; for all other
    # findings its message is about internals.
    if code == "SPEC":
        sentence, shows = _put_jax_first(sentence, shows, message)
    return Verdict(
        code=code,
        what=sentence,
        where=source.quote_line(finding.line),
        fix=finding.fix,
        shows=shows,
        details={"finding": finding.code},
    )


def _put_jax_first(
    explanation: str, shows: tuple[str, ...], message: str
) -> tuple[str, tuple[str, ...]]:
    """Return the first line of JAX's message as the sentence, with the explanation below it."""
    if shows and shows[0].startswith("JAX: "):
        return shows[0], (*shows[1:_MAX_LINES], explanation)
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return (f"JAX: {first}", (explanation, *shows)) if first else (explanation, shows)


def exception_verdict(report: ExceptionReport, source: SubmissionSource) -> Verdict:
    """Return the verdict on an exception: by its family or by JAX's message, otherwise RTE."""
    where, explanation = source.quote_line(report.line), _remove_addresses(report.what)
    message = _remove_addresses(report.message)
    head, rest = _split_message(report.exception_type, message)
    if report.family in _FAMILY_CODES:
        code = _FAMILY_CODES[report.family]
        details = {"family": report.family}
        return Verdict(
            code=code, what=explanation or head, where=where, fix=report.fix, details=details
        )
    # The simulator raises JAX's own exceptions without a finding; their message decides.
    code = next((c for phrase, c in _MESSAGE_CODES.items() if phrase in message), "RTE")
    if code == "VMA":
        shows = (f"JAX: {head}", *rest)
        return Verdict(code="VMA", what=_VMA_WHAT, where=where, fix=_VMA_FIX, shows=shows)
    if code == "SPEC":
        return Verdict(code="SPEC", what=f"JAX: {head}", where=where, shows=(*rest, _SPEC_WHAT))
    if report.exception_type == "MemoryError" or "RESOURCE_EXHAUSTED" in message:
        sentence = f"The memory limit was reached: {head}."
        return Verdict(code="MLE", what=sentence, where=where, shows=rest)
    # The starter raises it in every function that is not written yet.
    if report.exception_type == "NotImplementedError" and not message.strip():
        sentence = "NotImplementedError: this part is not written yet."
        return Verdict(code="RTE", what=sentence, where=where)
    shows, sentence = rest, head
    if explanation:  # the exception's own message is then about JAX's internals
        is_repeated = explanation in head or report.exception_type == "SystemExit"
        sentence, shows = explanation, () if is_repeated else (head,)
    details = {"exception": report.exception_type}
    return Verdict(
        code="RTE", what=sentence, where=where, fix=report.fix, shows=shows, details=details
    )


def _split_message(exception_type: str, message: str) -> tuple[str, tuple[str, ...]]:
    """Return `Type: first line` and the next few lines."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    head = f"{exception_type}: {lines[0]}" if lines else exception_type
    return head, tuple(lines[1:_MAX_LINES])


def _remove_addresses(text: str) -> str:
    """Return text without memory addresses, so that a judgement is the same every time.

    >>> _remove_addresses("<object object at 0x7f43ef7d9bc0>")
    '<object object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def load_failure_verdict(report: ExceptionReport, source: SubmissionSource) -> Verdict:
    """Return the verdict on a submission that cannot be executed."""
    message = _remove_addresses(report.message)
    # Python appends this to the message of a SyntaxError; the line is shown anyway.
    message = re.sub(rf" \({re.escape(SUBMISSION_FILE)}, line \d+\)$", "", message)
    sentence, shows = _split_message(report.exception_type, message)
    if report.exception_type == "SystemExit":  # its message is a number
        sentence, shows = report.what or sentence, ()
    return Verdict(code="CE", what=sentence, where=source.quote_line(report.line), shows=shows)


def missing_exception_verdicts(
    expected: Exception, report: ExceptionReport | None, source: SubmissionSource
) -> list[Verdict]:
    """Return the verdict on a case that must raise; none if it raises that type."""
    name = type(expected).__name__
    if report is None:
        sentence = f"It returns a result; expected {name} ({expected})."
        return [Verdict(code="WA", what=sentence, details={"must_raise": name})]
    # By name, because the class itself exists only in the tracer; subclasses count.
    if name in report.base_types:
        return []
    verdict = exception_verdict(report, source)
    return [
        Verdict(
            code=verdict.code,
            what=f"It raises {report.exception_type}; expected {name} ({expected}).",
            where=verdict.where,
            shows=(verdict.what, *verdict.shows),
        )
    ]


# ------------------------------------------------------------------------- processes that ended

# Caused by the process itself; every other signal comes from outside.
_CRASH_SIGNALS = {
    int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
}
# XLA's CPU backend logs these when a collective blocks, before it aborts the process.
_XLA_HANG = re.compile(r"rendezvous|may be stuck", re.IGNORECASE)
_LOOP_FIX = "look for a loop that never ends."
_UNROLLED_FIX = (
    "a Python loop over the devices is unrolled, and takes long to compile for many devices: "
    "jax.lax.fori_loop or jax.lax.scan compile its body once. Otherwise look for a loop that never "
    "ends."
)
# Seconds without the processor. A running program waits for nothing but other devices.
_HANG_IDLE_SECONDS = 2.0


def exit_signal(reason: ExitReason) -> int | None:
    """Return the signal that ended a process, also if it is given as a negative exit code."""
    if reason.signal:
        return reason.signal
    code = reason.exit_code
    return -code if code is not None and code < 0 else None


def is_judge_fault(reason: ExitReason) -> bool:
    """Return whether a process ended for a reason that the submission cannot have caused."""
    if reason.is_self_inflicted:
        return False
    if reason.kind in ("signal", "exit"):
        # At level C anybody can send a signal; these are sent by the kernel for what a process did.
        number = exit_signal(reason)
        return number is not None and number not in _CRASH_SIGNALS
    return reason.kind == "internal"


def is_worth_retrying(reason: ExitReason) -> bool:
    """Return whether something else can be the cause: a killed process breaks its pipes too."""
    return is_judge_fault(reason) or reason.kind == "protocol"


def exit_verdict(reason: ExitReason, activity: str, stack_dump: str = "") -> Verdict:
    """Return the verdict on a process that ended before it responded.

    `activity` is that of its request, such as "tracing the submission".
    """
    if is_judge_fault(reason):
        return internal_error(
            f"the process {activity} was ended ({reason.detail or _exit_text(reason)})"
        )
    if activity == RunRequest.activity and _is_hang(reason, stack_dump):
        return Verdict(
            code="HANG",
            what="Devices block forever in a collective: some of them never reach it.",
            fix="let every device call the same collectives in the same order.",
        )
    if reason.kind == "time":
        detail = f" ({reason.detail})" if reason.detail else ""
        return Verdict(
            code="TLE",
            what=f"The time limit was reached{detail} while {activity}.",
            fix=_UNROLLED_FIX if activity == SimulateRequest.activity else _LOOP_FIX,
        )
    if reason.kind == "memory":
        sentence = f"The memory limit was reached while {activity}. {reason.detail}".strip()
        return Verdict(code="MLE", what=sentence)
    if reason.kind == "output":
        sentence = f"More was printed or returned than is allowed, while {activity}."
        return Verdict(code="OLE", what=sentence)
    if reason.kind == "protocol":
        detail = f" ({reason.detail})" if reason.detail else ""
        sentence = f"The process returned something else than a result while {activity}{detail}."
        return Verdict(code="RTE", what=sentence)
    sentence = f"The process ended by itself while {activity} ({_exit_text(reason)})."
    return Verdict(code="RTE", what=sentence)


# How the interpreter's stack dumps begin (faulthandler).
_STACK_DUMP = re.compile(r"^(Timeout \(|Fatal Python error|Thread 0x|Current thread)", re.MULTILINE)
_STACK_START = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_STACK_LINE = re.compile(rf'File "{re.escape(SUBMISSION_FILE)}", line (\d+)')


def split_stack_dump(output: str) -> tuple[str, str]:
    """Return what a submission printed, and the stack dump of its interpreter after it.

    >>> split_stack_dump("hello\\nTimeout (0:00:02)!\\nThread 0x1:\\n")
    ('hello\\n', 'Timeout (0:00:02)!\\nThread 0x1:\\n')
    """
    match = _STACK_DUMP.search(output)
    start = match.start() if match else len(output)
    return output[:start], output[start:]


def stack_dump_line(stack_dump: str) -> int | None:
    """Return the line of the submission that was executed last, if the stack dumps have it.

    Each thread's stack has its innermost frame first, and later dumps follow earlier ones.
    """
    stacks = _STACK_START.split(stack_dump)
    lines = [match for match in map(_STACK_LINE.search, stacks) if match]
    return int(lines[-1][1]) if lines else None


def _is_hang(reason: ExitReason, stack_dump: str) -> bool:
    # An endless loop uses the processor until its end; a blocked collective does not.
    if reason.kind == "time" and reason.idle_seconds > _HANG_IDLE_SECONDS:
        return True
    return reason.kind in ("time", "signal") and bool(_XLA_HANG.search(stack_dump))


def internal_error(reason: str) -> Verdict:
    """Return the verdict on a failure of the judge itself."""
    return Verdict(
        code="IE",
        what=f"The judge failed: {reason}.",
        fix="submit again; this is not counted as an attempt.",
    )


def reference_failure(error: ReferenceFailed) -> Verdict:
    """Return the verdict on a case whose reference failed: nobody's submission is to blame."""
    return Verdict(code="IE", what=error.what, where=error.where, fix=error.fix)


def _exit_text(reason: ExitReason) -> str:
    number = exit_signal(reason)
    if number:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit code {reason.exit_code}" if reason.exit_code is not None else reason.kind
