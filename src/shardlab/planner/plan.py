"""A plan: what one device stores of a model, by kind and by tensor. Made by `shardlab.plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.findings.finding import Finding
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.sharding.spec import Spec, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    # Renderers are imported where they are used: `import shardlab` must not load rich.
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from shardlab.planner.snapshots.plan_comparison import Comparison

FORMAT, FORMAT_VERSION = "shardlab plan", 1

Choice = str | int  # counts are ints, switches are bools
Kind = Literal["parameters", "gradients", "optimizer", "activations", "kv_cache"]
KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "activations", "kv_cache")
_OLD_CHOICES = {"measures": "architecture"}  # older name of an option in a file -> its name now
# After the text of a rule whose spec is invalid, so that the tensor is replicated.
INVALID_SPEC_NOTE = ", which does not fit"
_MANY_AXES = 3  # of size 1: from here on `mesh_summary` only counts them


@dataclass(frozen=True, kw_only=True)
class SkippedSharding:
    """A sharding that a strategy wanted and skipped, because a size is not divisible.

    >>> str(SkippedSharding(part="tensor", mesh_axes=("tensor",), n_shards=16, dim=0, size=8,
    ...                     meaning="kv_heads"))
    "8 kv heads are not divisible by 16 (mesh axis 'tensor')"
    """

    part: str  # of the strategy: "fsdp", "tensor", "expert", "zero"
    mesh_axes: tuple[str, ...]
    n_shards: int
    dim: int
    size: int  # not divisible: the size of the dimension, or the number of heads along it
    meaning: str  # of the dimension: "kv_heads", "mlp"; "" if unknown

    def __str__(self) -> str:
        subject = f"dimension {self.dim} of size {self.size:,} is"
        if self.is_heads:
            subject = f"{self.size:,} {self.meaning.replace('_', ' ')} are"
        noun = "mesh axis" if len(self.mesh_axes) == 1 else "mesh axes"
        axes = " × ".join(map(repr, self.mesh_axes))
        return f"{subject} not divisible by {self.n_shards:,} ({noun} {axes})"

    @property
    def is_heads(self) -> bool:
        return self.meaning in ("heads", "kv_heads")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "part": self.part,
            "mesh_axes": list(self.mesh_axes),
            "n_parts": self.n_shards,
            "array_axis": self.dim,
            "size": self.size,
            "meaning": self.meaning,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SkippedSharding:
        """Return the record that `to_json` wrote."""
        return cls(
            part=data["part"],
            mesh_axes=tuple(data["mesh_axes"]),
            n_shards=data["n_parts"],
            dim=data["array_axis"],
            size=data["size"],
            meaning=data["meaning"],
        )


@dataclass(frozen=True, kw_only=True)
class DeviceBytes:
    """One array of a row on one device: the parameter, its gradient, or an optimizer state."""

    kind: Kind
    name: str  # "parameter", "gradient", "mu", "master", ...
    shape: tuple[int, ...]
    dtype: str  # the short name, as bf16
    spec: Spec
    shard_shape: tuple[int, ...]
    n_replicas: int  # devices that store the same shard
    bytes_per_device: int  # of all tensors of the row
    array_bytes: int  # of all tensors of the row, counted once

    @property
    def wasted_bytes(self) -> float:
        """Bytes on a device beyond its even share of one replica."""
        # With n replicas a device could store 1/n of its shard and gather the rest when needed.
        return self.bytes_per_device * (1 - 1 / self.n_replicas)

    def last_device_bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of the device that is last along every mesh axis.

        It stores less than the others if a dimension is not divisible: padding is at the end.
        """
        last_shard = list(self.shape)
        for dim, names in enumerate(self.spec.axes[: len(last_shard)]):
            # Shards are rounded up, so all devices before the last have full ones.
            before = self.shard_shape[dim] * (prod(sizes[name] for name in names) - 1)
            last_shard[dim] = max(0, self.shape[dim] - before)
        n_elements = prod(self.shard_shape)
        # A dimension of size 0: nothing is stored anywhere.
        if not n_elements:
            return self.bytes_per_device
        return self.bytes_per_device * prod(last_shard) // n_elements

    @property
    def sharded_dims(self) -> tuple[tuple[str, ...], ...]:
        """The mesh axes by dimension, without unsharded ones at the end: P() equals P(None)."""
        return strip_unsharded(self.spec)


def strip_unsharded(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes by dimension, without trailing dimensions that are not sharded.

    >>> strip_unsharded(Spec("data", None)) == strip_unsharded(Spec("data"))
    True
    """
    axes = spec.axes
    while axes and not axes[-1]:
        axes = axes[:-1]
    return axes


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """Tensors of one shape under one rule: one row of the table."""

    path: str  # with a star for each number
    n_tensors: int
    arrays: tuple[DeviceBytes, ...]  # the parameter first
    rule: str  # which rule gave the spec, for readers
    rule_index: int | None = None  # in `Plan.rules`; None: a strategy, no rule, or several
    dim_names: tuple[str | None, ...] | None = None  # logical names of the dimensions, if known
    numbers: str = ""  # which numbers the stars are, as "0..79"
    skipped: tuple[SkippedSharding, ...] = ()  # shardings that a strategy could not apply

    @property
    def parameter(self) -> DeviceBytes:
        return self.arrays[0]

    def bytes_of(self, kind: Kind) -> int:
        return sum(array.bytes_per_device for array in self.arrays if array.kind == kind)

    @property
    def bytes_per_device(self) -> int:
        return sum(array.bytes_per_device for array in self.arrays)

    @property
    def wasted_bytes(self) -> float:
        return sum(array.wasted_bytes for array in self.arrays)


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """Bytes on a device that belong to no tensor of the model, with the formula they come from."""

    kind: Kind
    name: str
    bytes_per_device: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """The memory of one device, and the headroom to leave free."""

    hardware: str
    hbm_bytes: int
    headroom: float  # the fraction of the memory that a plan leaves free
    source: str = ""

    @property
    def usable_bytes(self) -> int:
        return int(self.hbm_bytes * (1 - self.headroom))


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan:
    """What each device of a mesh stores of a model. Made by `shardlab.plan`."""

    model: str
    source: str
    mesh: MeshSizes
    n_parameters: int
    rows: tuple[PlanRow, ...]
    items: tuple[MemoryItem, ...] = ()
    budget: MemoryBudget | None = None
    rules: tuple[RuleLine, ...] = ()
    has_derived_rules: bool = False  # the user gave none: they reproduce a strategy's specs
    choices: Mapping[str, Choice] = field(default_factory=dict)  # strategy, batch, remat, ...
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def bytes_of(self, kind: Kind) -> int:
        """Return what one device stores of a kind, one of `KINDS`."""
        if kind not in KINDS:
            suggestion = nearest_name(kind, KINDS) if isinstance(kind, str) else None
            raise UnknownOption(
                f"Unknown kind of memory {short_repr(kind)}; known: {', '.join(KINDS)}.",
                fix=f"Did you mean {suggestion!r}?" if suggestion else "one of these names.",
            )
        tensor_bytes = sum(row.bytes_of(kind) for row in self.rows)
        return tensor_bytes + sum(item.bytes_per_device for item in self.items if item.kind == kind)

    def choice_text(self, name: str) -> str:
        """Return an option as text; an empty string if it was not set."""
        value = self.choices.get(name, "")
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else f"{value:,}"

    @property
    def mesh_text(self) -> str:
        return mesh_text(self.mesh)

    @property
    def mesh_summary(self) -> str:
        """The mesh for readers: many axes of size 1, as MaxText has them, are only counted."""
        n_ones = sum(size == 1 for _, size in self.mesh)
        if n_ones < _MANY_AXES or n_ones == len(self.mesh):
            return self.mesh_text
        rest = mesh_text(pair for pair in self.mesh if pair[1] != 1)
        return f"{rest} and {n_ones} axes of size 1"

    def array_text(self, array: DeviceBytes) -> str:
        """Return an array as JAX prints its type, with its mesh axes: `bf16[8@data,4@(x,y)]`.

        Mesh axes of size 1 shard nothing and are omitted.
        """
        sizes = dict(self.mesh)
        # A spec may be shorter than the shape: missing entries are unsharded, as in JAX.
        entries = (*array.spec.axes, *((),) * len(array.shape))
        dims = []
        for size, names in zip(array.shape, entries, strict=False):
            sharding = [name for name in names if sizes.get(name) != 1]
            axes = f"({','.join(sharding)})" if len(sharding) > 1 else "".join(sharding)
            dims.append(f"{size}@{axes}" if axes else str(size))
        return f"{array.dtype}[{','.join(dims)}]"

    @property
    def n_devices(self) -> int:
        return prod(size for _, size in self.mesh)

    @property
    def bytes_per_device(self) -> int:
        """What the fullest device stores; all store the same if every dimension is divisible."""
        return sum(map(self.bytes_of, KINDS))

    def arrays_of(self, kind: Kind) -> Iterator[DeviceBytes]:
        """Yield the arrays of a kind, row by row."""
        return (array for row in self.rows for array in row.arrays if array.kind == kind)

    def least_bytes_of(self, kind: Kind) -> int:
        """Return what the emptiest device stores of a kind: the last one, see `DeviceBytes`."""
        sizes = dict(self.mesh)
        items = (item.bytes_per_device for item in self.items if item.kind == kind)
        return sum(array.last_device_bytes(sizes) for array in self.arrays_of(kind)) + sum(items)

    def unreplicated_bytes_of(self, kind: Kind) -> int:
        """Return the bytes of a kind's tensors, each counted once; items have no such size."""
        return sum(array.array_bytes for array in self.arrays_of(kind))

    @property
    def fits(self) -> bool | None:
        """Whether it fits with the headroom; None if no hardware was given."""
        # A plan fits to the last byte; safety is the headroom's job.
        return None if self.budget is None else self.bytes_per_device <= self.budget.usable_bytes

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, byte for byte the same for the same plan.

        Keys are those of format version 1, so that saved plans stay readable: `room` is the memory
        budget, `held` the arrays of a row, `n_copies` the replicas, `declined` what was skipped.
        """
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
            "room": None if self.budget is None else vars(self.budget).copy(),
            "rules": [rule.to_json() for rule in self.rules],
            **({"derived_rules": True} if self.has_derived_rules else {}),
            "rows": list(map(_row_to_json, self.rows)),
            "items": [vars(item).copy() for item in self.items],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote, here or in an older version."""
        rules = tuple(map(RuleLine.from_json, data["rules"]))
        labels = _rule_labels(rules)
        return cls(
            model=data["model"],
            source=data["source"],
            mesh=tuple(data["mesh"].items()),
            n_parameters=data["n_parameters"],
            rows=tuple(_row_from_json(row, labels) for row in data["rows"]),
            items=tuple(MemoryItem(**item) for item in data["items"]),
            budget=None if data["room"] is None else MemoryBudget(**data["room"]),
            rules=rules,
            has_derived_rules=data.get("derived_rules", _are_derived(data)),
            choices={
                _OLD_CHOICES.get(name, name): data["choices"][name] for name in data["choices"]
            },
            findings=tuple(map(Finding.from_json, data["findings"])),
            notes=tuple(data["notes"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as a golden file, atomically; `load_plan` reads it."""
        from shardlab.planner.snapshots.saved_plan import save_plan

        save_plan(self, path)

    def compare(self, old: Plan | str | Path) -> Comparison:
        """Return what changed since an older plan, or since the file it was saved to."""
        from shardlab.planner.snapshots.compare_plans import compare_plans
        from shardlab.planner.snapshots.saved_plan import load_plan

        return compare_plans(old if isinstance(old, Plan) else load_plan(old), self)

    def svg(self) -> str:
        """Return the memory of a device as stacked bars against its capacity."""
        from shardlab.planner.memory_bars import bars_svg

        return bars_svg(self)

    def treemap(self) -> str:
        """Return the memory of a device as a treemap in SVG: what is sharded, what replicated."""
        from shardlab.planner.treemap import treemap_svg

        return treemap_svg(self)

    def markdown(self) -> str:
        """Return the plan for a design document."""
        from shardlab.planner.plan_text import plan_markdown

        return plan_markdown(self)

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        from shardlab._text.printable import printable_text
        from shardlab.planner.plan_text import plan_headline

        summary = f"<Plan of {self.model} on {self.mesh_summary}: {plan_headline(self)}>"
        return printable_text(summary)

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


def _row_to_json(row: PlanRow) -> dict[str, Any]:
    data: dict[str, Any] = {
        "path": row.path,
        "n_tensors": row.n_tensors,
        "held": list(map(_array_to_json, row.arrays)),
        "rule": row.rule,
        "axes": None if row.dim_names is None else list(row.dim_names),
        "numbers": row.numbers,
    }
    # Left out if empty: most rows have neither, and a golden file stays short.
    if row.rule_index is not None:
        data["rule_index"] = row.rule_index
    if row.skipped:
        data["declined"] = [skipped.to_json() for skipped in row.skipped]
    return data


def _array_to_json(array: DeviceBytes) -> dict[str, Any]:
    return {
        "kind": array.kind,
        "name": array.name,
        "shape": list(array.shape),
        "dtype": array.dtype,
        "spec": spec_json(array.spec),
        "shard_shape": list(array.shard_shape),
        "n_copies": array.n_replicas,
        "bytes_per_device": array.bytes_per_device,
        "array_bytes": array.array_bytes,
    }


def _row_from_json(data: Mapping[str, Any], labels: Mapping[str, int]) -> PlanRow:
    return PlanRow(
        path=data["path"],
        n_tensors=data["n_tensors"],
        arrays=tuple(map(_array_from_json, data["held"])),
        rule=data["rule"],
        rule_index=data.get("rule_index", labels.get(data["rule"].removesuffix(INVALID_SPEC_NOTE))),
        dim_names=None if data["axes"] is None else tuple(data["axes"]),
        numbers=data["numbers"],
        skipped=tuple(map(SkippedSharding.from_json, data.get("declined", ()))),
    )


def _array_from_json(data: Mapping[str, Any]) -> DeviceBytes:
    return DeviceBytes(
        kind=data["kind"],
        name=data["name"],
        shape=tuple(data["shape"]),
        dtype=data["dtype"],
        spec=parse_spec(data["spec"]),
        shard_shape=tuple(data["shard_shape"]),
        n_replicas=data["n_copies"],
        bytes_per_device=data["bytes_per_device"],
        array_bytes=data["array_bytes"],
    )


def _are_derived(data: Mapping[str, Any]) -> bool:
    """Return whether the rules of an older file reproduce a strategy: it labels every row."""
    return bool(data["rules"]) and all(row["rule"].startswith("strategy ") for row in data["rows"])


def _rule_labels(rules: Sequence[RuleLine]) -> dict[str, int]:
    """Return the index of each rule by the text that older files have instead of `rule_index`."""
    labels, n_patterns = {}, 0
    for index, line in enumerate(rules):
        n_patterns += line.kind == "pattern"
        if line.kind != "logical":
            label = f"rule {n_patterns}:" if line.kind == "pattern" else "spec for"
            labels[f"{label} {line.pattern}"] = index
    return labels
