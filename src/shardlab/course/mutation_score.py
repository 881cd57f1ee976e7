"""Mutation scores: how many mutants of a problem the hidden cases kill, and which survive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.course.audit_exceptions import AUDIT_FILE, AuditExceptions
from shardlab.course.problem_lint import Fault


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mutant that passes all hidden cases of some seed, and differs on other inputs."""

    name: str
    part: int  # 0: of the file as a unit
    seed: int
    file: str
    line: int = 0  # 0: a changed argument or result
    source: str = ""  # the line

    @property
    def fault(self) -> Fault:
        part = f"part {self.part}, " if self.part else ""
        return Fault(
            rule="mutants.survive",
            message=f"{part}seed {self.seed}: {self.name}",
            file=self.file,
            line=self.line,
            details=(self.source,) if self.source else (),
        )


@dataclass(frozen=True, kw_only=True)
class MutationScore:
    """The mutants of one problem."""

    n_killed: int = 0
    n_equivalent: int = 0
    survivors: tuple[Survivor, ...] = ()
    unused_exceptions: tuple[str, ...] = ()  # listed mutants that do not survive

    @classmethod
    def create(
        cls,
        n_killed: int,
        n_equivalent: int,
        survivors: Sequence[Survivor],
        exceptions: AuditExceptions,
        *,
        is_solution: bool,
    ) -> MutationScore:
        """Return the score without the survivors that audit.toml lists as equivalent."""
        listed = [survivor for survivor in survivors if exceptions.lists_mutant(survivor.name)]
        names = [survivor.name for survivor in listed]
        return cls(
            n_killed=n_killed,
            n_equivalent=n_equivalent + len(listed),
            survivors=tuple(survivor for survivor in survivors if survivor not in listed),
            unused_exceptions=exceptions.unused_mutants(names, is_solution=is_solution),
        )

    def __add__(self, other: MutationScore) -> MutationScore:
        return MutationScore(
            n_killed=self.n_killed + other.n_killed,
            n_equivalent=self.n_equivalent + other.n_equivalent,
            survivors=self.survivors + other.survivors,
            unused_exceptions=self.unused_exceptions + other.unused_exceptions,
        )

    @property
    def n_mutants(self) -> int:
        """Return the number of mutants that are not equivalent."""
        return self.n_killed + len(self.survivors)

    @property
    def percent(self) -> float:
        return 100 * self.n_killed / self.n_mutants if self.n_mutants else 100.0

    @property
    def faults(self) -> tuple[Fault, ...]:
        unused = [
            Fault(
                rule="audit.unused",
                message=f"The mutant does not survive or does not exist: {name}",
                file=AUDIT_FILE,
            )
            for name in self.unused_exceptions
        ]
        return (*(survivor.fault for survivor in self.survivors), *unused)

    def to_json(self) -> dict[str, Any]:
        return {
            "killed": self.n_killed,
            "mutants": self.n_mutants,
            "equivalent": self.n_equivalent,
            "survivors": [
                {
                    "mutant": survivor.name,
                    "part": survivor.part,
                    "seed": survivor.seed,
                    "file": survivor.file,
                    "line": survivor.line,
                    "source": survivor.source,
                }
                for survivor in self.survivors
            ],
        }


NO_SCORE = MutationScore()
