"""A plan: what one device holds of a whole model, by kind and by tensor.

A cut that a strategy would have made and did not, since the sizes forbid it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.findings.finding import Finding
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.sharding.mesh import MeshSizes
from shardlab.sharding.spec import Spec, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from shardlab.planner.snapshots.comparison import Comparison


@dataclass(frozen=True, kw_only=True)
class SkippedSharding:
    """What a strategy left whole: the mesh axes it had in mind, and what did not divide.

    >>> str(SkippedSharding("tensor", ("tensor",), 16, 0, 8, "kv_heads"))
    "8 kv heads do not divide over 'tensor' of size 16"
    """

    part: str  # of the strategy: "fsdp", "tensor", "expert", "zero"
    mesh_axes: tuple[str, ...]
    n_parts: int
    array_axis: int
    size: int  # what does not divide: the array axis, or the heads along it
    meaning: str  # of the array axis: "kv_heads", "mlp"; "" where it is not known

    def __str__(self) -> str:
        what = f"{self.size:,} {self.meaning.replace('_', ' ')}" if self.is_heads else (
            f"array axis {self.array_axis} of size {self.size:,}"
        )  # fmt: skip
        verb = "do" if self.is_heads else "does"
        axes = " × ".join(map(repr, self.mesh_axes))
        return f"{what} {verb} not divide over {axes} of size {self.n_parts:,}"

    @property
    def is_heads(self) -> bool:
        return self.meaning in ("heads", "kv_heads")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "mesh_axes": list(self.mesh_axes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SkippedSharding:
        """Return what `to_json` wrote."""
        return cls(**{**data, "mesh_axes": tuple(data["mesh_axes"])})


FORMAT, FORMAT_VERSION = "shardlab plan", 1

Choice = str | int  # a count as a number, yes and no as a bool
Kind = Literal["parameters", "gradients", "optimizer", "activations", "kv_cache"]
KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "activations", "kv_cache")


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """One array of a row as a device holds it: the parameter, its gradient, a moment of it."""

    kind: Kind
    name: str  # "parameter", "gradient", "mu", "master", ...
    shape: tuple[int, ...]
    dtype: str  # the short name, as bf16
    spec: Spec
    shard_shape: tuple[int, ...]
    n_copies: int  # devices that hold the same piece
    bytes_per_device: int  # of all tensors of the row
    array_bytes: int  # counted once, of all tensors of the row

    @property
    def wasted_bytes(self) -> float:
        """What a device holds beyond its even share of one copy."""
        return self.bytes_per_device * (1 - 1 / self.n_copies)

    def least_bytes(self, sizes: Mapping[str, int]) -> int:
        """Return what the device with the last pieces holds, less where an axis does not divide."""
        least = list(self.shape)
        for at, names in enumerate(self.spec.axes[: len(least)]):
            before = self.shard_shape[at] * (prod(sizes[name] for name in names) - 1)
            least[at] = max(0, self.shape[at] - before)
        held = prod(self.shard_shape)
        return self.bytes_per_device * prod(least) // held if held else self.bytes_per_device


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """Tensors of one shape under one rule: one line of the table."""

    path: str  # with a star for each number
    n_tensors: int
    held: tuple[DeviceBytes, ...]  # the parameter first
    rule: str  # which rule gave the spec, in words
    axes: tuple[str | None, ...] | None = None  # logical names, where known
    numbers: str = ""  # which numbers the stars stand for, as "0..79"
    declined: tuple[SkippedSharding, ...] = ()  # cuts that a strategy could not make

    @property
    def parameter(self) -> DeviceBytes:
        return self.held[0]

    def bytes_of(self, kind: Kind) -> int:
        return sum(each.bytes_per_device for each in self.held if each.kind == kind)

    @property
    def bytes_per_device(self) -> int:
        return sum(each.bytes_per_device for each in self.held)

    @property
    def wasted_bytes(self) -> float:
        return sum(each.wasted_bytes for each in self.held)


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """Bytes on a device that belong to no tensor of the model, with the formula they come from."""

    kind: Kind
    name: str
    bytes_per_device: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """The memory of one device, and what is to stay free of it."""

    hardware: str
    hbm_bytes: int
    headroom: float  # a share of it that a plan leaves free
    source: str = ""

    @property
    def usable_bytes(self) -> int:
        return int(self.hbm_bytes * (1 - self.headroom))


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan:
    """What each device of a mesh holds of a model. Made by `shardlab.plan`."""

    model: str
    source: str
    mesh: MeshSizes
    n_parameters: int
    rows: tuple[PlanRow, ...]
    items: tuple[MemoryItem, ...] = ()
    room: MemoryBudget | None = None
    rules: tuple[RuleLine, ...] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)  # strategy, batch, remat, ...
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def bytes_of(self, kind: Kind) -> int:
        """Return what one device holds of a kind, one of `KINDS`."""
        if kind not in KINDS:
            near = nearest_name(kind, KINDS) if isinstance(kind, str) else None
            raise UnknownOption(
                f"A device holds no kind {short_repr(kind)}; there is {', '.join(KINDS)}.",
                fix=f"{near!r}, the nearest name." if near else "one of these.",
            )
        tensors = sum(row.bytes_of(kind) for row in self.rows)
        return tensors + sum(item.bytes_per_device for item in self.items if item.kind == kind)

    def choice_text(self, name: str) -> str:
        """Return a choice in words; nothing where there is none, or none was made."""
        value = self.choices.get(name, "")
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else f"{value:,}"

    @property
    def mesh_text(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.mesh) or "()"

    @property
    def mesh_words(self) -> str:
        """The mesh for people: many axes of size 1, as MaxText has them, are only counted."""
        ones = [name for name, size in self.mesh if size == 1]
        if len(ones) < 3:
            return self.mesh_text
        rest = ",".join(f"{name}={size}" for name, size in self.mesh if size != 1)
        return f"{rest} and {len(ones)} axes of size 1" if rest else self.mesh_text

    def array_text(self, held: DeviceBytes) -> str:
        """Return an array as JAX prints it, with its mesh axes: `bf16[8@data,4@(x,y)]`.

        Mesh axes of size 1 cut nothing and are left out.
        """
        sizes = dict(self.mesh)
        entries = (*held.spec.axes, *((),) * len(held.shape))
        parts = []
        for size, names in zip(held.shape, entries, strict=False):
            cutting = [name for name in names if sizes.get(name) != 1]
            joined = f"({','.join(cutting)})" if len(cutting) > 1 else "".join(cutting)
            parts.append(f"{size}@{joined}" if joined else str(size))
        return f"{held.dtype}[{','.join(parts)}]"

    @property
    def n_devices(self) -> int:
        return prod(size for _, size in self.mesh)

    @property
    def bytes_per_device(self) -> int:
        """What the fullest device holds; all hold the same where every axis divides."""
        return sum(map(self.bytes_of, KINDS))

    def least_bytes_of(self, kind: Kind) -> int:
        """Return what the emptiest device holds of a kind: the last one, with the last pieces."""
        sizes = dict(self.mesh)
        held = (each for row in self.rows for each in row.held if each.kind == kind)
        items = (item.bytes_per_device for item in self.items if item.kind == kind)
        return sum(each.least_bytes(sizes) for each in held) + sum(items)

    def once_bytes_of(self, kind: Kind) -> int:
        """Return the bytes of a kind's tensors in one copy; items have none."""
        held = (each for row in self.rows for each in row.held if each.kind == kind)
        return sum(each.array_bytes for each in held)

    @property
    def fits(self) -> bool | None:
        """Whether it fits with the headroom; None where no hardware was named."""
        return None if self.room is None else self.bytes_per_device <= self.room.usable_bytes

    @property
    def ok(self) -> bool:
        return not any(found.severity == "error" for found in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, the same for the same plan to the byte."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "source": self.source,
            "mesh": dict(self.mesh),
            "n_parameters": self.n_parameters,
            "choices": dict(self.choices),
            "bytes_per_device": {
                **{kind: self.bytes_of(kind) for kind in KINDS},
                "total": self.bytes_per_device,
            },
            "room": None if self.room is None else vars(self.room).copy(),
            "rules": [rule.to_json() for rule in self.rules],
            "rows": list(map(_row_json, self.rows)),
            "items": [vars(item).copy() for item in self.items],
            "findings": [found.to_json() for found in self.findings],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote."""
        return cls(
            model=data["model"],
            source=data["source"],
            mesh=tuple(data["mesh"].items()),
            n_parameters=data["n_parameters"],
            rows=tuple(map(_row, data["rows"])),
            items=tuple(MemoryItem(**item) for item in data["items"]),
            room=None if data["room"] is None else MemoryBudget(**data["room"]),
            rules=tuple(map(RuleLine.from_json, data["rules"])),
            choices=data["choices"],
            findings=tuple(map(Finding.from_json, data["findings"])),
            notes=tuple(data["notes"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as a golden file, whole or not at all; `load_plan` reads it."""
        from shardlab.planner.snapshots.saved_plan import save_plan

        save_plan(self, path)

    def compare(self, old: Plan | str | Path) -> Comparison:
        """Return what has changed since an older plan, or since the file it was saved to."""
        from shardlab.planner.snapshots.compare import compare
        from shardlab.planner.snapshots.saved_plan import load_plan

        return compare(old if isinstance(old, Plan) else load_plan(old), self)

    def svg(self) -> str:
        """Return what a device holds against its memory, as stacked bars."""
        from shardlab.planner.memory_bars import bars_svg

        return bars_svg(self)

    def treemap(self) -> str:
        """Return what takes the bytes of a device as SVG: sharded, or replicated."""
        from shardlab.planner.treemap import treemap_svg

        return treemap_svg(self)

    def markdown(self) -> str:
        """Return the plan for a design document."""
        from shardlab.planner.plan_text import plan_markdown

        return plan_markdown(self)

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        from shardlab._text.printable import printable_text
        from shardlab.planner.plan_text import headline

        return printable_text(f"<Plan of {self.model} on {self.mesh_words}: {headline(self)}>")

    def __str__(self) -> str:
        from shardlab.planner.plan_text import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from shardlab.planner.plan_text import plan_html

        return plan_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.planner.plan_text import plan_rich

        yield plan_rich(self, options.max_width)


def spec_json(spec: Spec) -> list[Any]:
    """Return a spec's entries as plain data."""
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec.entries]


def _row_json(row: PlanRow) -> dict[str, Any]:
    held = [
        {
            **vars(each),
            "shape": list(each.shape),
            "spec": spec_json(each.spec),
            "shard_shape": list(each.shard_shape),
        }
        for each in row.held
    ]
    axes = None if row.axes is None else list(row.axes)
    declined = {"declined": [each.to_json() for each in row.declined]} if row.declined else {}
    fields = {name: value for name, value in vars(row).items() if name != "declined"}
    return {**fields, "axes": axes, "held": held, **declined}


def _row(data: Mapping[str, Any]) -> PlanRow:
    held = tuple(
        DeviceBytes(
            **{
                **each,
                "shape": tuple(each["shape"]),
                "spec": parse_spec(each["spec"]),
                "shard_shape": tuple(each["shard_shape"]),
            }
        )
        for each in data["held"]
    )
    axes = None if data["axes"] is None else tuple(data["axes"])
    declined = tuple(map(SkippedSharding.from_json, data.get("declined", ())))
    return PlanRow(**{**data, "held": held, "axes": axes, "declined": declined})
