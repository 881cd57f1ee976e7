"""The result of `prove`: three proofs, each with its verdict, one sentence and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardlab._text.units import bytes_text
from shardlab.sharding.mesh import MeshSizes, mesh_text

# "not proven" means that the proof could not be made, or that it decides nothing; its sentence
# says why. It is never a weak form of "proven".
Verdict = Literal["proven", "disproven", "not proven"]
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CollectiveTotal:
    """All collectives of one kind over the same mesh axes, per device."""

    op: str  # JAX's name: psum, all_gather, psum_scatter, all_to_all, ppermute, ...
    mesh_axes: tuple[str, ...]
    n_calls: int  # executions
    payload_bytes: int  # of the operands on one device
    wire_bytes: int  # that one device sends

    @property
    def text(self) -> str:
        return f"{self.n_calls} {self.op} over {','.join(self.mesh_axes)}"


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """A difference between Shardy and XLA that is legitimate, and the reason."""

    rule: str
    reason: str
    wire_bytes: int  # of the collectives to which the rule was applied


@dataclass(frozen=True, kw_only=True)
class CollectiveDifference:
    """Collectives of one kind and mesh axes on which the claim and XLA disagree."""

    op: str
    mesh_axes: tuple[str, ...]
    claimed_bytes: int  # wire bytes per device that only the claim has
    xla_bytes: int  # wire bytes per device that only XLA has

    @property
    def text(self) -> str:
        claimed, xla = bytes_text(self.claimed_bytes), bytes_text(self.xla_bytes)
        return f"{self.op} over {','.join(self.mesh_axes)}: only claimed {claimed}, only XLA {xla}"


@dataclass(frozen=True, kw_only=True)
class CollectiveProof:
    """Whether XLA's partitioner inserts the collectives that were claimed."""

    verdict: Verdict
    sentence: str
    xla: tuple[CollectiveTotal, ...] = ()
    claimed: tuple[CollectiveTotal, ...] = ()
    normalisations: tuple[Normalisation, ...] = ()
    differences: tuple[CollectiveDifference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ValueProof:
    """Whether the sharded program computes the values of the unsharded one."""

    verdict: Verdict
    sentence: str
    mesh: MeshSizes = ()  # the scaled-down mesh on which it ran
    n_outputs: int = 0
    n_elements: int = 0  # finite elements of the outputs, all compared on every device
    inputs: str = ""  # how the inputs were drawn
    worst_output: str = ""  # with the largest error in units of its tolerance
    worst_error: float = 0.0
    worst_tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MemoryProof:
    """Whether the compiler's memory per device is the planned one, and fits."""

    verdict: Verdict
    sentence: str
    planned_argument_bytes: int = 0
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None  # outputs that reuse the memory of donated arguments
    temp_bytes: int | None = None  # of XLA for CPU: information, no forecast for a TPU or GPU
    tpu_total_bytes: int | None = None  # arguments, outputs and temporaries, less aliased ones
    limit_bytes: int | None = None
    compiler: str = ""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proven about the shardings of one program on one mesh."""

    program: str
    mesh: MeshSizes
    collectives: CollectiveProof
    values: ValueProof
    memory: MemoryProof

    @property
    def verdict(self) -> Verdict:
        """Return `disproven` if any proof is, `proven` if all are, otherwise `not proven`."""
        verdicts = [part.verdict for _, part in self.parts]
        if "disproven" in verdicts:
            return "disproven"
        return "proven" if set(verdicts) == {"proven"} else "not proven"

    @property
    def parts(self) -> tuple[tuple[str, CollectiveProof | ValueProof | MemoryProof], ...]:
        """Return the three proofs, each with its name."""
        return (
            ("collectives", self.collectives),
            ("values", self.values),
            ("memory", self.memory),
        )

    @property
    def disproof(self) -> str:
        """Return the proofs that failed, each with what differed; empty if none did."""
        failed = [(name, part) for name, part in self.parts if part.verdict == "disproven"]
        return " ".join(f"{name}: {part.sentence}" for name, part in failed)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return one line for each proof."""
        return tuple(f"{name}: {part.verdict}: {part.sentence}" for name, part in self.parts)

    def __str__(self) -> str:
        title = f"{self.program} on {mesh_text(self.mesh)}: {self.verdict}"
        normalised = [
            f"  normalised: {rule.rule} ({bytes_text(rule.wire_bytes)}): {rule.reason}"
            for rule in self.collectives.normalisations
        ]
        differing = [f"  differs: {item.text}" for item in self.collectives.differences]
        collectives, *rest = self.lines
        return "\n".join([title, collectives, *normalised, *differing, *rest])

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "program": self.program,
            "mesh": dict(self.mesh),
            "verdict": self.verdict,
            "collectives": asdict(self.collectives),
            "values": {**asdict(self.values), "mesh": dict(self.values.mesh)},
            "memory": asdict(self.memory),
        }


def not_proven(program: str, mesh: MeshSizes, reason: str) -> Proof:
    """Return the record of proofs that were not made."""
    return Proof(
        program=program,
        mesh=mesh,
        collectives=CollectiveProof(verdict="not proven", sentence=reason),
        values=ValueProof(verdict="not proven", sentence=reason),
        memory=MemoryProof(verdict="not proven", sentence=reason),
    )


def proof_from_json(data: Mapping[str, Any]) -> Proof:
    """Return the proof of `Proof.to_json`."""
    collectives, values = data["collectives"], data["values"]
    return Proof(
        program=data["program"],
        mesh=tuple(data["mesh"].items()),
        collectives=CollectiveProof(
            verdict=collectives["verdict"],
            sentence=collectives["sentence"],
            xla=_with_axes(CollectiveTotal, collectives["xla"]),
            claimed=_with_axes(CollectiveTotal, collectives["claimed"]),
            normalisations=tuple(Normalisation(**item) for item in collectives["normalisations"]),
            differences=_with_axes(CollectiveDifference, collectives["differences"]),
        ),
        values=ValueProof(**{**values, "mesh": tuple(values["mesh"].items())}),
        memory=MemoryProof(**data["memory"]),
    )


def _with_axes(kind: Any, items: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(kind(**{**item, "mesh_axes": tuple(item["mesh_axes"])}) for item in items)


def total_wire_bytes(totals: Sequence[CollectiveTotal]) -> int:
    """Return the bytes that one device sends, in total."""
    return sum(total.wire_bytes for total in totals)
