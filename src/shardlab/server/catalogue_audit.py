"""The audit of an uploaded catalogue: what the terminal's audit checks, without its mutants.

Mutants take minutes of a worker for each problem, so they are left to `shardlab catalogue check` on
the author's machine. Everything that decides whether a catalogue is usable is checked here: its
format, and that the starter fails, the solution passes, and each wrong submission gets its verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from shardlab._text.printable import printable_text
from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue
from shardlab.course.audit import audit_problem, unlisted_folders
from shardlab.course.problem_lint import Fault
from shardlab.sandbox.process import ProcessEnded, SandboxPool
from shardlab.server.jobs.queue import JsonObject
from shardlab.server.people.catalogues import AuditFault
from shardlab.server.uploaded_catalogue import relative_text

# For all problems together; one that has begun is finished. The limits of submissions alone allow
# hours: 20 problems, each with 20 wrong submissions of a minute.
MAX_SECONDS = 3600.0
_MAX_FAULTS = 100
_MAX_DETAILS, _MAX_TEXT = 12, 400


def audit_upload(
    pool: SandboxPool,
    catalogue: Catalogue,
    report_progress: Callable[[JsonObject], None],
    *,
    max_seconds: float = MAX_SECONDS,
) -> list[AuditFault]:
    """Return the faults of a catalogue that was loaded without trust."""
    assert not catalogue.is_trusted
    end = time.monotonic() + max_seconds
    faults = [
        AuditFault(
            problem=slug, rule="tracks.unlisted", message="tracks.toml does not list the problem."
        )
        for slug in unlisted_folders(catalogue)
    ]
    for number, problem in enumerate(catalogue.problems.values()):
        if time.monotonic() >= end:
            message = f"The audit took more than {max_seconds / 60:g} minutes and ended here."
            faults.append(AuditFault(problem=problem.slug, rule="problem", message=message))
            break
        progress = {"n_problems": len(catalogue.slugs), "n_audited": number}
        report_progress({**progress, "problem": problem.slug})
        faults += [_view_fault(problem, fault) for fault in _audit(pool, problem)]
    return faults[:_MAX_FAULTS]


def _audit(pool: SandboxPool, problem: Problem) -> Iterator[Fault]:
    try:
        # On the meshes of host devices a wrong submission fails already.
        yield from audit_problem(pool, problem, simulate_wrong=False, mutants="none").faults
    except ProcessEnded:
        raise
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
        # The files may be anything: text that a reader did not expect is a fault of the problem.
        message = "The problem's files cannot be read."
        yield Fault(rule="problem", message=message)


def _view_fault(problem: Problem, fault: Fault) -> AuditFault:
    def shorten(text: str) -> str:
        return printable_text(relative_text(text, problem.folder))[:_MAX_TEXT]

    return AuditFault(
        problem=problem.slug,
        rule=fault.rule,
        message=shorten(fault.message),
        file=shorten(fault.file or ""),
        line=fault.line,
        details=tuple(map(shorten, fault.details[:_MAX_DETAILS])),
    )
