"""Advice: the meshes and strategies that a model can be trained or served with, ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.step_time import StepTime
from shardlab.planner.plan import KINDS, Kind, MemoryBudget
from shardlab.sharding.mesh import MeshSizes, mesh_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

FORMAT, FORMAT_VERSION = "shardlab advice", 3
# Why a candidate lost: another way to shard over the same mesh is better; its mesh is slower; it
# does not fit; the mesh does not divide the model, or the batch.
LossKind = Literal["", "variant", "slower", "memory", "model", "batch"]
# Keys of format version 1 -> now
_OLD_KEYS = {
    "why": "loss_kind",
    "laid": "placement",
    "room": "budget",
    "enough": "sufficient",
    "enough_chips": "sufficient_devices",
}


@dataclass(frozen=True, kw_only=True)
class MeshRejection:
    """Why a mesh cannot be used, with the size as a value, so that equal reasons can be grouped.

    >>> str(MeshRejection(before="8 experts are not divisible by expert=", size=16))
    '8 experts are not divisible by expert=16'
    """

    before: str
    size: int
    after: str = ""
    detail: str = ""  # differs between meshes of the same reason and size

    def __str__(self) -> str:
        return f"{self.before}{self.size:,}{self.after}{self.detail}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to shard a model: its memory per device, the time of a step, and why it lost.

    A mesh that cannot be used is rejected as a whole: then it has no strategy and no bytes.
    """

    mesh: MeshSizes
    strategy: str = ""
    zero: int = 0  # the ZeRO stage of the strategy
    remat: str = ""
    n_microbatches: int = 1
    bytes_by_kind: Mapping[Kind, int] = field(default_factory=dict)
    step: StepTime | None = None
    framework: str = ""  # the software whose efficiency the time assumes
    placement: str = ""  # of the mesh on the network, as "fsdp 16x16, tensor 2"
    loss_kind: LossKind = ""
    reason: str = ""  # why it lost; for the best candidate what bounds it
    rejection: MeshRejection | None = None  # of the mesh; `reason` is its text

    @property
    def bytes_per_device(self) -> int:
        return sum(self.bytes_by_kind.values())

    @property
    def mesh_text(self) -> str:
        return mesh_text(self.mesh)

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "mesh": dict(self.mesh),
            "bytes_by_kind": {kind: size for kind, size in self.bytes_by_kind.items() if size},
            "bytes_per_device": self.bytes_per_device,
            "step": None if self.step is None else self.step.to_json(),
            "rejection": None if self.rejection is None else vars(self.rejection).copy(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        fields = {_OLD_KEYS.get(key, key): value for key, value in data.items()}
        del fields["bytes_per_device"]
        sizes, rejection = data["bytes_by_kind"], data.get("rejection")
        return cls(
            **{
                **fields,
                "mesh": tuple(data["mesh"].items()),
                "bytes_by_kind": {kind: sizes.get(kind, 0) for kind in KINDS} if sizes else {},
                "step": None if data["step"] is None else StepTime.from_json(data["step"]),
                "rejection": None if rejection is None else MeshRejection(**rejection),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The result of `shardlab.advise`: the best way for each mesh that fits, then all others."""

    model: str
    source: str
    n_parameters: int
    hardware: str
    n_chips: int
    n_devices: int
    choices: Mapping[str, str]  # optimizer, batch, sequence, ...
    budget: MemoryBudget
    ranked: tuple[Candidate, ...]  # best first
    others: tuple[Candidate, ...]
    formulas: tuple[str, ...] = ()
    figures: tuple[FigureUsed, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""  # what to run next
    # If nothing fits: the best candidate on the smallest multiple of the devices that is enough,
    # and that number; or, if none is, the largest number that was tried.
    sufficient: Candidate | None = None
    sufficient_devices: int = 0
    devices_tried: int = 0
    requested: Candidate | None = None  # the best on a mesh that the user named
    requested_source: str = ""  # the configuration that mesh is from; "": the user's option

    @property
    def best(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None

    @property
    def n_candidates(self) -> int:
        return len(self.ranked) + len(self.others)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, byte for byte the same for the same advice."""
        fields = vars(self).copy()
        del fields["requested_source"]  # only for headings; the command adds the configuration
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **fields,
            "choices": dict(self.choices),
            "budget": vars(self.budget).copy(),
            "ranked": [candidate.to_json() for candidate in self.ranked],
            "others": [candidate.to_json() for candidate in self.others],
            "formulas": list(self.formulas),
            "figures": [figure.to_json() for figure in self.figures],
            "notes": list(self.notes),
            "sufficient": None if self.sufficient is None else self.sufficient.to_json(),
            "requested": None if self.requested is None else self.requested.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Advice:
        """Return the advice that `to_json` wrote, here or in an older version."""
        fields = {
            _OLD_KEYS.get(key, key): value
            for key, value in data.items()
            if not key.startswith("format")
        }
        sufficient, requested = fields.get("sufficient"), fields.get("requested")
        return cls(
            **{
                **fields,
                "formulas": tuple(fields["formulas"]),
                "budget": MemoryBudget(**fields["budget"]),
                "ranked": tuple(map(Candidate.from_json, fields["ranked"])),
                "others": tuple(map(Candidate.from_json, fields["others"])),
                "figures": tuple(map(FigureUsed.from_json, fields["figures"])),
                "notes": tuple(fields["notes"]),
                "sufficient": None if sufficient is None else Candidate.from_json(sufficient),
                "requested": None if requested is None else Candidate.from_json(requested),
            }
        )

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        from shardlab.planner.advice.advice_text import advice_headline

        return (
            f"<Advice on {self.model}, {self.n_devices} {self.hardware}: {advice_headline(self)}>"
        )

    def __str__(self) -> str:
        from shardlab.planner.advice.advice_text import advice_text

        return advice_text(self)

    def _repr_html_(self) -> str:
        from shardlab.planner.advice.advice_text import advice_html

        return advice_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.planner.advice.advice_text import advice_rich

        yield advice_rich(self, options.max_width)
