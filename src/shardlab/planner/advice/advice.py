"""Advice: the meshes and strategies that a model can be trained or served with, ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.step_time import StepTime
from shardlab.planner.plan import KINDS, Kind, MemoryBudget
from shardlab.sharding.mesh import MeshSizes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# why a candidate was not taken: another way to cut the same mesh is better; its mesh is slower; it
# does not fit; the model or the batch cannot be cut like this
Why = Literal["", "variant", "slower", "memory", "model", "batch"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to cut a model: what it takes on a device, how long a step is, and why it lost.

    A mesh that cuts nothing sensible is refused as a whole: then it has no strategy and no bytes.
    """

    mesh: MeshSizes
    strategy: str = ""
    remat: str = ""
    n_microbatches: int = 1
    bytes_by_kind: Mapping[Kind, int] = field(default_factory=dict)
    step: StepTime | None = None
    laid: str = ""  # how the mesh lies on the network, in words
    why: Why = ""
    reason: str = ""  # in words; of the best one what bounds it

    @property
    def bytes_per_device(self) -> int:
        return sum(self.bytes_by_kind.values())

    @property
    def mesh_text(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.mesh)

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "mesh": dict(self.mesh),
            "bytes_by_kind": {kind: n for kind, n in self.bytes_by_kind.items() if n},
            "bytes_per_device": self.bytes_per_device,
            "step": None if self.step is None else self.step.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        kept = {key: value for key, value in data.items() if key != "bytes_per_device"}
        given = data["bytes_by_kind"]
        return cls(
            **{
                **kept,
                "mesh": tuple(data["mesh"].items()),
                "bytes_by_kind": {kind: given.get(kind, 0) for kind in KINDS} if given else {},
                "step": None if data["step"] is None else StepTime.from_json(data["step"]),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What `shardlab.advise` found: the best way for each mesh that fits, then all the others."""

    model: str
    source: str
    n_parameters: int
    hardware: str
    n_chips: int
    n_devices: int
    choices: Mapping[str, str]  # optimizer, batch, sequence, ...
    room: MemoryBudget
    ranked: tuple[Candidate, ...]  # best first
    others: tuple[Candidate, ...]
    formulas: tuple[str, ...] = ()
    figures: tuple[FigureUsed, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""  # what to run next
    enough: Candidate | None = None  # where nothing fits: the best on so many chips
    enough_chips: int = 0  # the least multiple on which it fits; without, the most that was tried

    @property
    def best(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None

    @property
    def n_candidates(self) -> int:
        return len(self.ranked) + len(self.others)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, the same for the same advice to the byte."""
        return {
            "format": "shardlab advice",
            "format_version": 1,
            **vars(self),
            "choices": dict(self.choices),
            "room": vars(self.room).copy(),
            "ranked": [each.to_json() for each in self.ranked],
            "others": [each.to_json() for each in self.others],
            "formulas": list(self.formulas),
            "figures": [each.to_json() for each in self.figures],
            "notes": list(self.notes),
            "enough": None if self.enough is None else self.enough.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Advice:
        """Return the advice that `to_json` wrote."""
        kept = {key: value for key, value in data.items() if not key.startswith("format")}
        return cls(
            **{
                **kept,
                "formulas": tuple(data["formulas"]),
                "room": MemoryBudget(**data["room"]),
                "ranked": tuple(map(Candidate.from_json, data["ranked"])),
                "others": tuple(map(Candidate.from_json, data["others"])),
                "figures": tuple(map(FigureUsed.from_json, data["figures"])),
                "notes": tuple(data["notes"]),
                "enough": None
                if data.get("enough") is None
                else Candidate.from_json(data["enough"]),
            }
        )

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        from shardlab.planner.advice.advice_text import headline

        return f"<Advice on {self.model}, {self.n_chips} {self.hardware}: {headline(self)}>"

    def __str__(self) -> str:
        from shardlab.planner.advice.advice_text import advice_text

        return advice_text(self)

    def _repr_html_(self) -> str:
        from shardlab.planner.advice.advice_text import advice_html

        return advice_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.planner.advice.advice_text import advice_rich

        yield advice_rich(self, options.max_width)
