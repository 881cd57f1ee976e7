"""The answer of autoshard: shardings, what they cost, and what was compared. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardlab.autoshard.proof.proof_record import Proof, proof_from_json
from shardlab.sharding.spec import Spec, parse_spec

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ArgumentSpec:
    """The spec of one array among the arguments."""

    name: str
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """Arrays that share a spec, and why they got it: the time and memory if replicated instead.

    The times are None if that was not evaluated (small arrays, or the time was over).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_arrays: int
    n_bytes: int  # of all arrays, unsharded
    local_bytes: int  # on one device
    spec: Spec
    is_kept: bool  # annotated by the person
    replicated_seconds: float | None = None
    replicated_bytes: int | None = None  # memory of a device
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ConstraintSpec:
    """A `with_sharding_constraint` to write in the program."""

    source: str  # file:line
    shape: tuple[int, ...]
    spec: Spec
    is_carry: bool  # constrain what the scan on this line carries, at the start of its body


@dataclass(frozen=True, kw_only=True)
class CollectiveUse:
    """Equal collectives of one line in a step; bytes are the operand on one device, of one call."""

    kind: str
    axes: tuple[str, ...]
    operand_bytes: int
    result_bytes: int
    count: int
    seconds: float  # of all calls
    is_overlapped: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class ShardingCost:
    """A set of shardings in the comparison: the answer itself, or a well-known one."""

    name: str
    mesh: str
    seconds: float
    memory_bytes: int
    communication_seconds: float
    fits: bool


@dataclass(frozen=True, kw_only=True)
class RankedShardings:
    """One of the candidates in the order of the estimate."""

    mesh: str
    specs: tuple[Spec, ...]
    constraints: tuple[ConstraintSpec, ...]
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class RunnerUp(RankedShardings):
    """A candidate that is proven, and offered, if a better one is disproven."""


@dataclass(frozen=True, kw_only=True)
class DiscardedAnswer(RankedShardings):
    """A better answer by the estimate, which is not offered because a proof disproved it."""

    reason: str  # which proof, and what differed by how much


@dataclass(frozen=True, kw_only=True)
class SearchSummary:
    """How the answer was found."""

    n_candidates: int
    seconds: float
    is_exhaustive: bool
    is_complete: bool  # False: the time budget ended the search
    seed: int
    is_interrupted: bool = False  # by Ctrl-C: the best until then


@dataclass(frozen=True, kw_only=True)
class Autosharding:
    """Shardings of a program for one mesh, with what they cost.

    `specs` are in the order of `jax.tree.leaves(args)`.
    """

    program: str
    mesh: str
    hardware: str
    placement: str
    memory_limit: int
    arguments: tuple[ArgumentSpec, ...]
    groups: tuple[GroupSpec, ...]
    constraints: tuple[ConstraintSpec, ...]
    collectives: tuple[CollectiveUse, ...]
    cost: ShardingCost
    busy_seconds: float
    comparison: tuple[ShardingCost, ...]
    search: SearchSummary
    runners_up: tuple[RunnerUp, ...]
    assumptions: tuple[str, ...]
    proof: Proof | None = None  # None: not requested
    discarded: tuple[DiscardedAnswer, ...] = ()  # disproven, best first

    @property
    def specs(self) -> tuple[Spec, ...]:
        return tuple(argument.spec for argument in self.arguments)

    def __str__(self) -> str:
        from shardlab.autoshard.answer_text import answer_text

        return answer_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; specs are texts such as `P('data', None)`."""
        data = asdict(self, dict_factory=_plain)
        proof = None if self.proof is None else self.proof.to_json()
        return {"format": "shardlab-autoshard", "version": FORMAT_VERSION, **data, "proof": proof}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Autosharding:
        fields = {key: data[key] for key in cls.__dataclass_fields__}
        return cls(
            **{
                **fields,
                "arguments": tuple(_record(ArgumentSpec, item) for item in data["arguments"]),
                "groups": tuple(_record(GroupSpec, item) for item in data["groups"]),
                "constraints": _constraints(data["constraints"]),
                "collectives": tuple(_record(CollectiveUse, i) for i in data["collectives"]),
                "cost": ShardingCost(**data["cost"]),
                "comparison": tuple(ShardingCost(**item) for item in data["comparison"]),
                "search": SearchSummary(**data["search"]),
                "runners_up": tuple(_candidate(RunnerUp, item) for item in data["runners_up"]),
                "assumptions": tuple(data["assumptions"]),
                "proof": None if data["proof"] is None else proof_from_json(data["proof"]),
                "discarded": tuple(_candidate(DiscardedAnswer, i) for i in data["discarded"]),
            }
        )


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in pairs}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Spec):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_plain_value(item) for item in value]
    # `asdict` has made a dict of a nested spec by its fields.
    if isinstance(value, dict) and set(value) == {"axes", "unreduced", "reduced"}:
        return str(Spec(*value["axes"]))
    return value


def _record(kind: Any, item: Mapping[str, Any]) -> Any:
    tuples = {key: tuple(value) for key, value in item.items() if isinstance(value, list)}
    specs = {"spec": parse_spec(item["spec"])} if "spec" in item else {}
    return kind(**{**item, **tuples, **specs})


def _candidate(kind: Any, item: Mapping[str, Any]) -> Any:
    specs = tuple(map(parse_spec, item["specs"]))
    return kind(**{**item, "specs": specs, "constraints": _constraints(item["constraints"])})


def _constraints(items: Any) -> tuple[ConstraintSpec, ...]:
    return tuple(_record(ConstraintSpec, item) for item in items)
