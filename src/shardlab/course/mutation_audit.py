"""The mutation audit: hidden cases must tell the reference from every mutant of it.

A wrong submission passes if the inputs that the reference draws do not decide. So the audit changes
the reference a little, in every way that the operators know, and requires that the hidden cases of
each seed show a different result. A mutant that no input can tell from the original is equivalent
and does not count.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import Reference, load_reference
from shardlab.course.argument_mutants import (
    ValueMutant,
    iterate_value_mutants,
    results_that_follow_from,
)
from shardlab.course.audit_exceptions import AuditExceptions
from shardlab.course.float32_numpy import Float32Numpy
from shardlab.course.free_inputs import draw_free_samples, is_finite, widen_sample
from shardlab.course.hidden_samples import (
    HIDDEN_SCALE,
    Sample,
    agrees,
    call_expected,
    draw_sample,
    draw_samples,
)
from shardlab.course.mutable_source import Edit, Execution, MutableSource
from shardlab.course.mutation_operators import ARRAY_NAME_MUTANTS
from shardlab.course.mutation_score import MutationScore, Survivor
from shardlab.judge.cases import make_cases

# A submission is judged with one seed, so the cases of every seed must decide alone.
N_SEEDS = 5
_N_FREE_SAMPLES = 150
_N_PAIR_SEEDS = 24  # draws in which equal shapes are looked for
_MAX_PAIR_DEVICES = 8
_OTHER_SEED = 7_919  # far from the seeds that are audited
# The code makes no sense with this change, whatever the inputs are.
_INVALID = (TypeError, NameError, AttributeError, SyntaxError, AssertionError)
_REFERENCE = "reference.py"


def score_reference(
    problem: Problem, *, seed: int, exceptions: AuditExceptions, n_seeds: int = N_SEEDS
) -> MutationScore:
    """Return how many mutants of the reference the hidden cases kill."""
    n_killed = n_equivalent = 0
    survivors: list[Survivor] = []
    for part in problem.parts:
        reference = load_reference(problem, part)
        # Values of such a part are judged by properties of the result; `expected` has none.
        if reference.properties is not None:
            continue
        audit = _PartAudit(problem, part, reference, range(seed, seed + n_seeds))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for outcome in audit.run():
                if isinstance(outcome, Survivor):
                    survivors.append(outcome)
                elif outcome == "killed":
                    n_killed += 1
                elif outcome == "equivalent":
                    n_equivalent += 1
    return MutationScore.create(n_killed, n_equivalent, survivors, exceptions, is_solution=False)


Outcome = Survivor | str  # killed, equivalent, invalid


class _PartAudit:
    """The mutants of one part."""

    def __init__(
        self, problem: Problem, part: Part, reference: Reference, seeds: Sequence[int]
    ) -> None:
        self._part, self._reference, self._seeds = part, reference, seeds
        path = problem.folder / _REFERENCE
        self._source = MutableSource(
            path.read_text("utf-8"),
            str(path),
            [reference.expected.__name__],
            name_mutants=ARRAY_NAME_MUTANTS,
        )
        self._draws = [draw_samples(part, reference, seed) for seed in seeds]
        self._names: Counter[str] = Counter()

    def run(self) -> Iterator[Outcome]:
        repeated, usual_edits = self._record_values()
        for edit in self._source.iterate_edits():
            if edit.when == "always" or id(edit.original) in repeated:
                yield self._try_edit(edit)
        for edit in usual_edits:
            yield self._try_edit(edit)
        others = draw_samples(self._part, self._reference, _OTHER_SEED)
        for mutant in iterate_value_mutants(self._draws[0], others, self._reference.expected):
            yield self._try_mutant(mutant)
        yield from self._try_memorized_results()

    # ---------------------------------------------------------------------------- mutated source

    def _record_values(self) -> tuple[set[int], list[Edit]]:
        """Return the ids of expressions evaluated several times, and edits to the usual value.

        A number that is the same in most cases is one that a submission could contain.
        """
        code, expressions = self._source.compile_recorder()
        execution = Execution()
        expected = self._load(code, execution)
        repeated: set[int] = set()
        values: dict[int, Counter[Any]] = {}
        for sample in self._draws[0]:
            execution.restart()
            execution.values.clear()
            call_expected(expected, sample.mesh, sample.inputs)
            for number, recorded in execution.values.items():
                if len(recorded) > 1:
                    repeated.add(id(expressions[number]))
                numbers = [value for value in map(_plain_number, recorded) if value is not None]
                values.setdefault(number, Counter()).update(numbers)
        edits = [
            self._source.edits_to_value(expressions[number], usual.most_common(1)[0][0])
            for number, usual in values.items()
            if usual
        ]
        return repeated, [edit for edit in edits if edit.before != edit.after]

    def _load(
        self, code: Any, execution: Execution, *, is_float32: bool = False
    ) -> Callable[..., Any]:
        namespace = {"__name__": "mutant", "__file__": self._source.file, **execution.names}
        exec(code, namespace)
        if is_float32:
            namespace["np"] = Float32Numpy()
        expected: Callable[..., Any] = namespace[self._reference.expected.__name__]
        return expected

    def _try_edit(self, edit: Edit) -> Outcome:
        execution = Execution(when=edit.when)
        try:
            code = self._source.compile_edit(edit)
            expected = self._load(code, execution)
            narrow = self._load(code, execution, is_float32=True) if self._is_float64 else None
        except Exception:  # raised by the constants of the module, or not valid Python
            return "invalid"
        mutant = ValueMutant(
            name=edit.name,
            compute=_make_compute(expected, execution),
            compute_float32=_make_compute(narrow, execution) if narrow else None,
        )
        return self._try_mutant(mutant, edit.line)

    @cached_property
    def _is_float64(self) -> bool:
        return any("np.float64" in line for line in self._source.lines)

    @cached_property
    def _original_float32(self) -> Callable[[Sample], Any]:
        execution = Execution()
        code = self._source.compile_original()
        return _make_compute(self._load(code, execution, is_float32=True), execution)

    def _differs(self, mutant: ValueMutant, sample: Sample) -> bool:
        """Return whether a sample tells a mutant from the original, in float64 or in float32."""
        if not agrees(sample.case, mutant.compute(sample), sample.result):
            return True
        if mutant.compute_float32 is None:
            return False
        # Only where float32 is enough for the original: rounding alone kills no mutant.
        original = self._original_float32(sample)
        return agrees(sample.case, original, sample.result) and not agrees(
            sample.case, mutant.compute_float32(sample), sample.result
        )

    # ------------------------------------------------------------------------------------ verdict

    def _try_mutant(self, mutant: ValueMutant, line: int = 0) -> Outcome:
        name = self._unique_name(mutant.name)
        try:
            seed = self._find_surviving_seed(mutant)
        except _INVALID:
            return "invalid"
        if seed is None:
            return "killed"
        general = mutant.general or mutant
        if not any(self._is_wrong_on(general, sample) for sample in self._free_samples):
            return "equivalent"
        return self._make_survivor(name, seed, line)

    def _make_survivor(self, name: str, seed: int, line: int = 0) -> Survivor:
        source = self._source.line_text(line) if line else ""
        return Survivor(
            name=name,
            part=self._part.number,
            seed=seed,
            file=_REFERENCE,
            line=line,
            source=source,
        )

    def _unique_name(self, name: str) -> str:
        self._names[name] += 1
        return f"{name} (#{self._names[name]})" if self._names[name] > 1 else name

    def _is_wrong_on(self, mutant: ValueMutant, sample: Sample) -> bool:
        """Return whether a mutant raises or differs on a free sample, by more than rounding.

        A sum in another order can differ where terms cancel, and decide a tie the other way. With
        float64 inputs it does not. What overflows in float32 only is wrong all the same.
        """
        try:
            if not self._differs(mutant, sample):
                return False
            if not all(is_finite(compute(sample)) for compute in mutant.computes):
                return True
            wide = widen_sample(sample, self._reference.expected)
            return wide is None or not agrees(wide.case, mutant.compute(wide), wide.result)
        except Exception:
            return True

    def _find_surviving_seed(self, mutant: ValueMutant) -> int | None:
        """Return the first seed whose cases all agree with the mutant; None if there is none."""
        is_first = True
        for seed, samples in zip(self._seeds, self._draws, strict=True):
            for sample in samples:
                try:
                    if self._differs(mutant, sample):
                        break
                except _INVALID:
                    if is_first:
                        raise
                    break
                except Exception:
                    break
                is_first = False
            else:
                return seed
        return None

    @cached_property
    def _free_samples(self) -> list[Sample]:
        samples = [sample for draw in self._draws for sample in draw]
        return list(
            draw_free_samples(
                samples, self._reference.expected, self._reference.accepts, count=_N_FREE_SAMPLES
            )
        )

    def _try_memorized_results(self) -> Iterator[Outcome]:
        """Try a submission that knows the results by case number, or by mesh and shapes."""
        keys: dict[str, Callable[[Sample], Any]] = {
            # On the same mesh: that of some cases is drawn too.
            "of another draw of this case": lambda sample: (sample.case.number, sample.mesh),
            "of another draw with these shapes": _shape_key,
        }
        pairs = [self._draws[0], *map(self._draw_small_cases, range(_N_PAIR_SEEDS))]
        varies = results_that_follow_from([self._free_samples], _shape_key)
        for label, key in keys.items():
            for path, follows in results_that_follow_from(pairs, key).items():
                if not follows:
                    yield "killed"
                elif varies.get(path, True):
                    yield "equivalent"
                else:
                    yield self._make_survivor(
                        f"result {path}".rstrip() + f" -> {label}", self._seeds[0]
                    )

    def _draw_small_cases(self, number: int) -> list[Sample]:
        cases = make_cases(self._part, _OTHER_SEED + number, HIDDEN_SCALE)
        return [
            draw_sample(case, self._reference)
            for case in cases
            if case.mesh is None or case.mesh.n_devices <= _MAX_PAIR_DEVICES
        ]


def _shape_key(sample: Sample) -> Any:
    return sample.mesh.axis_sizes, sample.array_shapes


def _make_compute(expected: Callable[..., Any], execution: Execution) -> Callable[[Sample], Any]:
    def compute(sample: Sample) -> Any:
        if execution.when == "last":  # counts first: only then the last time is known
            execution.n_times = 0
            execution.restart()
            call_expected(expected, sample.mesh, sample.inputs)
            execution.n_times = execution.count
        execution.restart()
        return call_expected(expected, sample.mesh, sample.inputs)

    return compute


def _plain_number(value: Any) -> Any:
    """Return a number or a flag as Python's own, None for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return float(value)
    return None
