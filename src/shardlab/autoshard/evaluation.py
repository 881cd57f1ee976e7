"""Evaluates candidates: shardings of all groups on one mesh -> time and memory, memoized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardlab._jax.partitioned_program import PartitionedProgram
from shardlab._jax.shardy_program import PartitioningFailed, ShardyProgram
from shardlab.autoshard.arguments import Group
from shardlab.autoshard.spec_choices import DimAxes, MeshSizes, replicated
from shardlab.autoshard.step_cost import StepCost, StepCoster

NOISE = 0.01  # of the step time: of answers this close the one that shards more is better
MIN_GAIN = 0.002  # of the step time: smaller differences mean nothing in an estimate

Assignment = tuple[DimAxes | None, ...]  # by group; None: a constraint point without a constraint


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One set of shardings, partitioned and timed."""

    mesh: MeshSizes
    assignment: Assignment
    program: PartitionedProgram
    cost: StepCost

    @property
    def seconds(self) -> float:
        return self.cost.seconds

    @property
    def memory_bytes(self) -> int:
        return self.cost.memory_bytes

    def score(self, memory_limit: int) -> tuple[int, float]:
        """Return the order of preference: what fits by its time, what does not by its memory."""
        if self.memory_bytes > memory_limit:
            return 1, float(self.memory_bytes)
        return 0, self.seconds


@dataclass(kw_only=True)
class Evaluator:
    """Partitions and times candidates of one program; every candidate only once."""

    program: ShardyProgram
    groups: tuple[Group, ...]
    coster: StepCoster
    memory_limit: int
    n_partitioned: int = 0
    _candidates: dict[tuple[MeshSizes, Assignment], Candidate | None] = field(default_factory=dict)

    @property
    def candidates(self) -> list[Candidate]:
        """Return all candidates so far that Shardy's passes accept."""
        return [candidate for candidate in self._candidates.values() if candidate is not None]

    def evaluate(self, mesh: MeshSizes, assignment: Assignment) -> Candidate | None:
        """Return the candidate; None if Shardy's passes reject it."""
        key = mesh, assignment
        if key not in self._candidates:
            self._candidates[key] = self._partition(mesh, assignment)
        return self._candidates[key]

    def score(self, candidate: Candidate) -> tuple[int, float]:
        return candidate.score(self.memory_limit)

    def fits(self, candidate: Candidate) -> bool:
        return candidate.memory_bytes <= self.memory_limit

    def is_better(self, candidate: Candidate, other: Candidate) -> bool:
        """Return whether a candidate is better by more than what the estimate can tell apart."""
        (over, value), (other_over, other_value) = self.score(candidate), self.score(other)
        return over < other_over or (over == other_over and value < other_value * (1 - MIN_GAIN))

    def argument_axes(self, assignment: Assignment) -> list[DimAxes]:
        """Return the shardings by argument, in the order of its leaves."""
        axes: list[DimAxes] = [replicated(leaf.shape) for leaf in self.program.arguments]
        for group, choice in zip(self.groups, assignment, strict=True):
            for leaf in group.leaves:
                assert choice is not None
                axes[leaf] = choice
        return axes

    def constraints(self, assignment: Assignment) -> Mapping[str, DimAxes]:
        """Return the shardings of the constraint points that have one."""
        return {
            group.point: choice
            for group, choice in zip(self.groups, assignment, strict=True)
            if group.point is not None and choice is not None
        }

    def _partition(self, mesh: MeshSizes, assignment: Assignment) -> Candidate | None:
        self.n_partitioned += 1
        try:
            program = self.program.partition(
                self.argument_axes(assignment), self.constraints(assignment), mesh
            )
        except PartitioningFailed:
            return None
        return Candidate(
            mesh=mesh,
            assignment=assignment,
            program=program,
            cost=self.coster.cost(program, mesh),
        )


def replace_choices(assignment: Assignment, changes: Mapping[int, DimAxes | None]) -> Assignment:
    return tuple(changes.get(index, choice) for index, choice in enumerate(assignment))


def replicate_all(groups: Sequence[Group]) -> Assignment:
    """Return the assignment that replicates everything but what the person annotated."""
    return tuple(
        None if group.point is not None else group.annotated or replicated(group.shape)
        for group in groups
    )
