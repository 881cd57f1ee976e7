"""The search: exhaustive on small spaces, otherwise local search from the best starts.

Moves of the local search, cheap and far-reaching ones first: all groups of one shape together (the
projections of an attention layer), one group alone, one constraint point, and pairs of groups,
because two matrices often pay only together: column-parallel, then row-parallel.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from math import prod

from shardlab.autoshard.arguments import Group
from shardlab.autoshard.evaluation import (
    Assignment,
    Candidate,
    Evaluator,
    replace_choices,
    replicate_all,
)
from shardlab.autoshard.spec_choices import DimAxes, MeshSizes, spec_choices

EXHAUSTIVE_LIMIT = 256  # candidates of a space that is searched completely, if there is time
_SMALL_SHARE = 1e-3  # of the bytes of all arguments: groups below keep their start
_N_STARTS = 2  # from which a local search begins

ReportStep = Callable[[str], None]


@dataclass(kw_only=True)
class Search:
    """Finds the best assignment within a time budget; the same seed searches in the same order."""

    evaluator: Evaluator
    deadline: float  # of time.monotonic()
    seed: int = 0
    report_step: ReportStep = lambda step: None
    is_of_meshes: bool = False  # of several meshes
    is_exhaustive: bool = False
    is_complete: bool = True  # False: the time was over before no move was better
    is_interrupted: bool = False  # by Ctrl-C
    starts: dict[str, Candidate] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.evaluator.groups

    def find(self, starts: Sequence[tuple[str, MeshSizes, Assignment]]) -> list[Candidate]:
        """Return the candidates, in the order in which they are to be offered.

        Ctrl-C ends the search, not the process, as soon as there is one that fits.
        """
        try:
            return self._find(starts)
        except KeyboardInterrupt:
            candidates = self._ranked()
            if not candidates or not self.evaluator.fits(candidates[0]):
                raise
            self.is_interrupted, self.is_complete, self.is_exhaustive = True, False, False
            return candidates

    def _find(self, starts: Sequence[tuple[str, MeshSizes, Assignment]]) -> list[Candidate]:
        """Search until no move is better, or the time is over.

        After an exhaustive search that is by score. After a local search the local optima and the
        usual shardings come first: most others differ from an optimum in one array only, and if
        the optimum is disproven, so are they.
        """
        meshes = list(dict.fromkeys(mesh for _, mesh, _ in starts))
        self.is_of_meshes = len(meshes) > 1
        evaluated = self._evaluate_starts(starts)
        if not evaluated:
            return []
        # Local search first, also in a small space: if the time ends, the best has been tried.
        optima = [self._improve(candidate) for candidate in _distinct(evaluated)[:_N_STARTS]]
        if len(meshes) == 1:
            choices = self._all_choices(meshes[0])
            self.is_exhaustive = self._try_all(choices, meshes[0])
            if self.is_exhaustive:
                self.is_complete = True
                return _distinct([self._first_best(choices, meshes[0]), *self._ranked()])
            optima.append(self._improve_arguments(meshes[0]))
        first = sorted(_distinct([*optima, *evaluated]), key=self.evaluator.score)
        return _distinct([*first, *self._ranked()])

    def _first_best(
        self, choices: Sequence[tuple[DimAxes | None, ...]], mesh: MeshSizes
    ) -> Candidate:
        """Return the best candidate; of equally good ones that which shards least."""
        evaluated = (self.evaluator.evaluate(mesh, item) for item in product(*choices))
        accepted = [candidate for candidate in evaluated if candidate is not None]
        return reduce(
            lambda best, item: item if self.evaluator.is_better(item, best) else best, accepted
        )

    def _improve_arguments(self, mesh: MeshSizes) -> Candidate:
        """Try all shardings of few arguments, with the best constraints so far and with none."""
        before, is_complete = self._ranked()[0], self.is_complete
        for assignment in (before.assignment, replicate_all(self.groups)):
            choices = [
                (assignment[index],) if self.groups[index].point is not None else options
                for index, options in enumerate(self._all_choices(mesh))
            ]
            self._try_all(choices, mesh)
        best = self._ranked()[0]
        best = best if best is before else self._improve(best)
        # Beyond a local optimum everything is extra: it was complete before.
        self.is_complete = is_complete
        return best

    def _ranked(self) -> list[Candidate]:
        return sorted(self.evaluator.candidates, key=self.evaluator.score)

    def _evaluate_starts(
        self, starts: Sequence[tuple[str, MeshSizes, Assignment]]
    ) -> list[Candidate]:
        for name, mesh, assignment in starts:
            self.report_step(f"evaluating {name} on {_mesh_text(mesh)}")
            candidate = self.evaluator.evaluate(mesh, assignment)
            if candidate is None:
                continue
            best = self.starts.get(name)
            if best is None or self.evaluator.score(candidate) < self.evaluator.score(best):
                self.starts[name] = candidate
        return sorted(self.starts.values(), key=self.evaluator.score)

    # ---------------------------------------------------------------------------------- exhaustive

    def _all_choices(self, mesh: MeshSizes) -> list[tuple[DimAxes | None, ...]]:
        return [self.choices(index, mesh) for index in range(len(self.groups))]

    def _try_all(self, choices: Sequence[tuple[DimAxes | None, ...]], mesh: MeshSizes) -> bool:
        """Evaluate every combination; return whether there are few enough, and time for them."""
        if prod(map(len, choices)) > EXHAUSTIVE_LIMIT:
            return False
        for assignment in product(*choices):
            if time.monotonic() > self.deadline:
                return False
            self.evaluator.evaluate(mesh, assignment)
        return True

    # -------------------------------------------------------------------------------- local search

    def _improve(self, start: Candidate) -> Candidate:
        """Return the local optimum reached from a candidate, or the best when time is up."""
        current, before = self._try_moves(start), start
        while current is not before and self.is_complete:
            current, before = self._try_moves(current), current
        return current

    def _try_moves(self, start: Candidate) -> Candidate:
        """Try every move once and keep each that is better."""
        current = start
        for changes in self._moves(start):
            if time.monotonic() > self.deadline:
                self.is_complete = False
                break
            assignment = replace_choices(current.assignment, changes)
            if assignment == current.assignment:
                continue
            candidate = self.evaluator.evaluate(current.mesh, assignment)
            if candidate is not None and self.evaluator.is_better(candidate, current):
                current = candidate
                self.report_step(
                    f"{self.evaluator.n_partitioned} candidates, "
                    f"{current.seconds * 1e3:.1f} ms a step"
                )
        return current

    def _moves(self, current: Candidate) -> Iterator[dict[int, DimAxes | None]]:
        mesh = current.mesh
        searched = self._searched_groups()
        classes: dict[object, list[int]] = {}
        for index in searched:
            group = self.groups[index]
            key = group.shape, group.is_state, group.point is not None
            classes.setdefault(key, []).append(index)
        for members in classes.values():
            if len(members) > 1:
                for choice in self.choices(members[0], mesh):
                    yield dict.fromkeys(members, choice)
        for index in searched:
            for choice in self.choices(index, mesh):
                yield {index: choice}
        yield from self._pair_moves(searched, mesh)

    def _pair_moves(
        self, searched: Sequence[int], mesh: MeshSizes
    ) -> Iterator[dict[int, DimAxes | None]]:
        """Yield moves of two weights at once over one mesh axis each."""
        weights = [i for i in searched if self.groups[i].is_state or len(searched) <= 6]
        pairs = [(a, b) for i, a in enumerate(weights) for b in weights[i + 1 :]]
        random.Random(self.seed).shuffle(pairs)
        for first, second in pairs:
            simple = [
                [c for c in self.choices(i, mesh) if c is not None and _n_axes(c) == 1]
                for i in (first, second)
            ]
            for choice, other in product(*simple):
                if {a for dim in choice for a in dim} == {a for dim in other for a in dim}:
                    yield {first: choice, second: other}

    def _searched_groups(self) -> list[int]:
        """Return the groups that are worth a move, largest first."""
        total = sum(group.n_bytes for group in self.groups if group.point is None)
        indices = [
            index
            for index, group in enumerate(self.groups)
            if not group.is_fixed
            and (
                group.point is not None
                or not group.is_state
                or group.n_bytes > _SMALL_SHARE * total
            )
        ]
        return sorted(
            indices, key=lambda i: (self.groups[i].point is not None, -self.groups[i].n_bytes)
        )

    def choices(self, index: int, mesh: MeshSizes) -> tuple[DimAxes | None, ...]:
        """Return the shardings of a group on a mesh; of a point also None, no constraint."""
        group = self.groups[index]
        if group.is_fixed:
            return (group.annotated,)
        if group.point is not None:
            return (None, *self._point_choices(group, mesh))
        return spec_choices(group.shape, mesh)

    def _point_choices(self, group: Group, mesh: MeshSizes) -> list[DimAxes]:
        """Return shardings along the batch, alone or with the last dimension over the last axis."""
        dims = sorted({0, len(group.shape) - 1})
        last = mesh[-1][0]
        return [
            axes
            for axes in spec_choices(group.shape, mesh, dims)
            if axes[0] and (len(group.shape) == 1 or set(axes[-1]) <= {last})
        ]


def _n_axes(axes: DimAxes) -> int:
    return sum(map(len, axes))


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({(item.mesh, item.assignment): item for item in candidates}.values())


def _mesh_text(mesh: MeshSizes) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)
