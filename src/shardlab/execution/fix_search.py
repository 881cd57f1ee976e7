"""Searches for an edit of the user's file that fixes what `check` found, in the worker process.

Each candidate is applied to a copy of the source in memory, loaded as a module of its own, and run.
Nothing is written here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import linecache
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardlab.analysis.fix_proof import FixProver, Program, Proof, Screening
from shardlab.analysis.trace_and_check import check
from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.findings.fix_search import Fix, FixSearch, RejectedEdit
from shardlab.findings.report import Report
from shardlab.fixes.candidate_edit import CandidateEdit, unified_diff
from shardlab.fixes.list_edits import list_edits
from shardlab.fixes.program_source import ProgramSource

# Programs with three independent mistakes are rare, and each round tries every edit again.
_MAX_ROUNDS = 3
_MAX_TRIED = 200
# Tried after one that makes some outputs right, for one that makes all of them right at once.
_TRIED_AFTER_PROGRESS = 12
ReportStep = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """One search: a function of a loaded module, the report of its check, and when to stop.

    `load_program` returns the function and its arguments of the module or of an edited copy of it.
    """

    module: types.ModuleType
    function_name: str
    load_program: Callable[[types.ModuleType], Program]
    report: Report
    deadline: float  # of the clock
    meshes: tuple[str, ...] = ()
    reference: Callable[..., Any] | None = None
    report_step: ReportStep = lambda step: None
    clock: Callable[[], float] = time.monotonic


def search_fixes(request: SearchRequest) -> FixSearch:
    """Return a proven fix if there is one, and the edits that failed."""
    findings = request.report.with_severity("error") or request.report.with_severity("warning")
    if not findings:
        return FixSearch(note="There is nothing to fix.")
    path = Path(str(request.module.__file__))
    try:
        data = path.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        return FixSearch(note=f"{path.name} cannot be edited: {error}.")
    original = request.load_program(request.module)
    prover = FixProver(original, request.report, request.meshes, request.reference)
    request.report_step("running the original")
    if reason := prover.why_not_provable():
        return FixSearch(note=reason)
    return _Search(request, prover, path, text, data).run(findings)


class _Search:
    """The rounds of one search."""

    def __init__(
        self, request: SearchRequest, prover: FixProver, path: Path, text: str, data: bytes
    ) -> None:
        self._request, self._prover = request, prover
        self._path, self._text, self._data = path, text, data
        self._rejected: list[RejectedEdit] = []
        self._is_late = False

    def run(self, findings: tuple[Finding, ...]) -> FixSearch:
        text, is_identity = self._text, True
        done: list[CandidateEdit] = []
        current = self._prover.screen_original()
        for _ in range(_MAX_ROUNDS):
            source = ProgramSource(text, self._request.function_name, self._prover.mesh_axes)
            best: tuple[CandidateEdit, str, Screening] | None = None
            n_since_progress = 0
            for edit in list_edits(source, findings, self._path.name)[:_MAX_TRIED]:
                if self._request.clock() > self._request.deadline:
                    self._is_late = True
                    break
                if best is not None:
                    n_since_progress += 1
                    if n_since_progress > _TRIED_AFTER_PROGRESS:
                        break
                new_text = edit.apply(source)
                self._request.report_step(f"trying {edit.what} in line {edit.line}")
                screening, proof = self._try(new_text, is_identity and edit.is_identity)
                if proof is not None and not proof.reason:
                    return self._result([*done, edit], new_text, proof)
                reason = (proof.reason if proof else "") or screening.reason
                self._reject([*done, edit], reason)
                best_screening = best[2] if best else current
                if screening.reason and screening.is_better_than(best_screening):
                    best = edit, new_text, screening
            if best is None or self._is_late:
                break
            # A part of what was wrong is right now: look for the rest in the edited program.
            edit, text, current = best
            done, is_identity = [*done, edit], is_identity and edit.is_identity
            findings = self._findings_of(text) or findings
        note = "The time limit ended the search early: --time-limit 600." if self._is_late else ""
        return FixSearch(rejected=tuple(self._rejected), note=note)

    def _try(self, text: str, is_identity: bool) -> tuple[Screening, Proof | None]:
        with self._loaded(text) as loaded:
            if isinstance(loaded, str):
                return Screening(reason=loaded, is_broken=True), None
            try:
                screening = self._prover.screen(loaded)
                if screening.reason:
                    return screening, None
                return screening, self._prover.prove(loaded, is_identity)
            # An edited program may fail in any way; then it is no fix.
            except Exception as error:
                return Screening(reason=_error_text(error), is_broken=True), None

    def _findings_of(self, text: str) -> tuple[Finding, ...]:
        request = self._request
        options: dict[str, Any] = {"meshes": list(request.meshes)} if request.meshes else {}
        with self._loaded(text) as loaded:
            if isinstance(loaded, str):
                return ()
            report = check(loaded.function, *loaded.args, reference=request.reference, **options)
        return report.with_severity("error") or report.with_severity("warning")

    @contextlib.contextmanager
    def _loaded(self, text: str) -> Iterator[Program | str]:
        """Yield the program of an edited source, or the reason why it does not load."""
        with edited_module(self._request.module, text) as module:
            if isinstance(module, str):
                yield module
                return
            try:
                program = self._request.load_program(module)
            except (Exception, SystemExit) as error:
                yield _error_text(error)
                return
            yield program

    def _reject(self, edits: list[CandidateEdit], reason: str) -> None:
        self._rejected.append(
            RejectedEdit(
                what=_words(edits), family=edits[-1].family, line=edits[-1].line, reason=reason
            )
        )

    def _result(self, edits: list[CandidateEdit], text: str, proof: Proof) -> FixSearch:
        new = text.encode()
        start, end, replacement = changed_region(self._data, new)
        file = os.path.relpath(self._path)
        file = str(self._path) if file.startswith("..") else file
        fix = Fix(
            what=_words(edits),
            family=" and ".join(dict.fromkeys(edit.family for edit in edits)),
            file=file,
            line=edits[0].line,
            diff=unified_diff(self._text, text, file),
            start=start,
            end=end,
            text=replacement.decode(),
            digest=hashlib.sha256(self._data).hexdigest(),
            new_digest=hashlib.sha256(new).hexdigest(),
            meshes=proof.meshes,
            n_inputs=proof.n_inputs,
            has_gradients=proof.has_gradients,
            remaining=proof.remaining,
        )
        return FixSearch(fixes=(fix,), rejected=tuple(self._rejected))


def changed_region(old: bytes, new: bytes) -> tuple[int, int, bytes]:
    """Return the span of `old` that differs from `new`, and what takes its place.

    Whole characters of UTF-8, so that the replacement is text.

    >>> changed_region(b"a + b", b"a + (b)")
    (4, 5, b'(b)')
    """
    start = _common_length(old, new)
    rest = min(len(old), len(new)) - start
    n_equal = min(_common_length(old[::-1], new[::-1]), rest)
    end = len(old) - n_equal
    while start and _is_inside_character(old, start):
        start -= 1
    while end < len(old) and _is_inside_character(old, end):
        end += 1
    return start, end, new[start : len(new) - (len(old) - end)]


def _common_length(first: bytes, second: bytes) -> int:
    pairs = zip(first, second, strict=False)
    return next(
        (index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second))
    )


def _is_inside_character(data: bytes, index: int) -> bool:
    return index < len(data) and data[index] & 0xC0 == 0x80


@contextlib.contextmanager
def edited_module(module: types.ModuleType, text: str) -> Iterator[types.ModuleType | str]:
    """Yield the module of a source under the name and file of the original.

    The lines of its findings are those of the edited text, so `linecache` has that text meanwhile.
    """
    edited = types.ModuleType(module.__name__)
    for name in ("__file__", "__package__", "__spec__", "__loader__", "__path__"):
        if hasattr(module, name):
            setattr(edited, name, getattr(module, name))
    file = str(module.__file__)
    previous = linecache.cache.get(file)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.modules[module.__name__] = edited
    try:
        try:
            exec(compile(text, file, "exec", dont_inherit=True), edited.__dict__)
        except (Exception, SystemExit) as error:
            yield _error_text(error)
            return
        yield edited
    finally:
        sys.modules[module.__name__] = module
        if previous is None:
            linecache.cache.pop(file, None)
        else:
            linecache.cache[file] = previous


def _error_text(error: BaseException) -> str:
    if isinstance(error, LabError):
        return error.what
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _words(edits: list[CandidateEdit]) -> str:
    return ", and ".join(f"{edit.what} in line {edit.line}" for edit in edits)
