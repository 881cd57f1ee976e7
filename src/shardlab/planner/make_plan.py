"""The plan of a model: mesh, rules and choices in, what one device holds out.

What a person asked to be planned, parsed: the question that a plan answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidType, UnknownOption, short_repr
from shardlab.findings.finding import Finding
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.planner.findings.limits import Limits, parse_limits
from shardlab.planner.findings.mesh_usage import idle_axes
from shardlab.planner.findings.plan_findings import plan_findings
from shardlab.planner.memory.activations import activation_items
from shardlab.planner.memory.device_bytes import counters_of, held_by
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.memory.fp8_scales import without_scales
from shardlab.planner.memory.gathered_weights import gathered_items
from shardlab.planner.memory.kv_cache import cache_items
from shardlab.planner.memory.optimizer import parse_optimizer
from shardlab.planner.memory.workload import Workload, parse_workload
from shardlab.planner.model import Model, check_model
from shardlab.planner.models.architecture import with_architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.models.optimizer_state import drop_optimizer_states
from shardlab.planner.plan import MemoryBudget, MemoryItem, Plan, PlanRow
from shardlab.planner.plan_mesh import parse_plan_mesh
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.rules.lint import lint_rules
from shardlab.planner.rules.logical_axes import resolve_semantics
from shardlab.planner.rules.matching import ShardedGroup, apply_rules, has_own_specs
from shardlab.planner.rules.path_search import match_paths
from shardlab.planner.rules.rules import parse_rules
from shardlab.planner.rules.strategy_rules import derive_rules, rule_lines_of
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.strategies.layer_stack import merge_stack_options
from shardlab.planner.strategies.layer_stack import stack_model as stacked
from shardlab.planner.strategies.strategy import (
    parse_strategy,
    shard_model,
    shard_optimizer_states,
    stack_option_for,
)
from shardlab.sharding.mesh import Mesh


def plan(
    model: Any,
    mesh: Any = None,
    *,
    rules: Any = None,
    strategy: str | None = None,
    hardware: str | Path | Hardware | None = None,
    optimizer: str = "none",
    policy: Any = None,
    workload: Workload | None = None,
    headroom: float = 0.1,
    limits: Limits | str | int | None = None,
    stack: str | None = None,
    n_devices: int | None = None,
    architecture: Any = None,
) -> Plan:
    """Return what each device of a mesh holds of a model.

    >>> made = plan("llama3-8b", "fsdp=8", strategy="fsdp", optimizer="adamw")
    >>> made.bytes_of("parameters") * 8 > 16e9
    True

    Without an optimizer it is a plan for inference. The model is a name, a file, or an object; the
    specs come from the rules, from a strategy, or from the model itself. The policy of dtypes is a
    name or text (`parse_dtype_policy`); `stack` holds "experts", "layers" or "all" of both in one array.
    Without a mesh it is the one that the model's own specs were made for, where its source has one.
    One size of the mesh may be -1, with `n_devices` or a slice such as v5p-1024 as the hardware.
    `architecture` gives measures to a model whose source has none (`parse_architecture`).
    """
    parsed = parse_dtype_policy(policy)
    loaded = with_architecture(check_model(load_model(model)), architecture)
    mesh = _own_mesh(loaded) if mesh is None else mesh
    meant, given = parse_plan_mesh(mesh, n_devices, hardware), parse_rules(rules)
    over = merge_stack_options(
        stack, given.stack, None if strategy is None else stack_option_for(strategy)
    )
    prepared = _prepared(loaded, parsed, over, optimizer)
    asked = PlanRequest(
        model=prepared,
        mesh=meant.mesh,
        rules=resolve_semantics(prepared, given),
        strategy=strategy,
        optimizer=parse_optimizer(optimizer).name,
        policy=parsed,
        workload=parse_workload(workload),
        room=None if meant.hardware is None else room_of(parse_hardware(meant.hardware), headroom),
        stack=over,
    )
    limit = parse_limits(limits)
    placed, found = _placed(asked, limit)
    made = make_plan(asked, placed)
    again = _Again(asked, placed, made)
    lines = rule_lines_of(asked.rules) or (derive_rules(placed) if strategy is not None else ())
    found = (*found, *plan_findings(made, asked, again, limit, found))
    return replace(made, rules=lines, findings=found)


def _own_mesh(model: Model) -> str:
    """Return the mesh that a model's source names."""
    if (mesh := model.details.get("mesh")) is None:
        raise InvalidType(
            f"There is no mesh, and {model.name!r:.80} names none.",
            fix='plan(model, "fsdp=4,tensor=2"): mesh axes with sizes, or a slice (v5p-1024).',
        )
    return mesh


def _prepared(model: Model, policy: DtypePolicy, over: str | None, optimizer: str) -> Model:
    """Return the model as its program holds it, with a note on what differs from its source."""
    model = without_scales(model, policy)
    if parse_optimizer(optimizer).name != "none":
        model = drop_optimizer_states(model)
    return model if over is None else stacked(model, over)


def make_plan(asked: PlanRequest, placed: Iterable[ShardedGroup]) -> Plan:
    """Return the plan without findings: what each device holds of tensors placed like this."""
    placed = tuple(placed)
    return _plan_of(asked, _rows(asked, placed), placed)


def _rows(asked: PlanRequest, placed: Iterable[ShardedGroup]) -> tuple[PlanRow, ...]:
    return tuple(_row(each, asked.mesh, asked.optimizer, asked.policy) for each in placed)


def _plan_of(asked: PlanRequest, rows: tuple[PlanRow, ...], placed: Iterable[ShardedGroup]) -> Plan:
    return Plan(
        model=asked.model.name,
        source=asked.model.source,
        mesh=tuple(asked.mesh.shape.items()),
        n_parameters=asked.model.n_parameters,
        rows=rows,
        items=(
            *plan_items(asked.model, _working(asked.mesh, rows), asked.workload, asked.optimizer),
            *(gathered_items(placed, asked.mesh, asked.policy) if asked.workload else ()),
        ),
        room=asked.room,
        choices={
            "strategy": asked.strategy or "",
            "optimizer": asked.optimizer,
            **({"policy": str(asked.policy)} if asked.policy != DtypePolicy() else {}),
            **({"stack": asked.stack} if asked.stack and asked.model.is_stacked else {}),
            **({"logical_semantics": said} if (said := asked.rules.semantics) else {}),
            **(asked.workload.choices(asked.is_training) if asked.workload else {}),
            **({"measures": "unknown"} if _lacks_measures(asked) else {}),
        },
        notes=_notes(asked),
    )


def _working(mesh: Mesh, rows: tuple[PlanRow, ...]) -> Mesh:
    """Return the mesh without the axes that cut nothing: they divide no activations either."""
    if not (idle := idle_axes(rows, mesh)):
        return mesh
    return Mesh({name: size for name, size in mesh.shape.items() if name not in idle})


class _Again:
    """Plans the same question with other choices, and remembers: rows do not depend on all."""

    def __init__(self, asked: PlanRequest, placed: tuple[ShardedGroup, ...], made: Plan) -> None:
        # with the rules themselves: as long as they are here, nothing else has their id
        self.placed = {self._key(asked): (placed, asked.rules)}
        self.rows = {(self._key(asked), asked.policy): made.rows}

    def __call__(self, other: PlanRequest) -> Plan:
        key = self._key(other)
        if key not in self.placed:
            self.placed[key] = (_placed(other)[0], other.rules)
        if (key, other.policy) not in self.rows:
            self.rows[key, other.policy] = _rows(other, self.placed[key][0])
        return _plan_of(other, self.rows[key, other.policy], self.placed[key][0])

    @staticmethod
    def _key(asked: PlanRequest) -> tuple[object, ...]:
        return asked.strategy, asked.mesh, id(asked.rules)


def _placed(
    asked: PlanRequest, limits: Limits | None = None
) -> tuple[tuple[ShardedGroup, ...], tuple[Finding, ...]]:
    """Return the tensors with their specs, and what lint says of the rules if limits are given."""
    model, mesh, rules = asked.model, asked.mesh, asked.rules
    strategy = None if asked.strategy is None else parse_strategy(asked.strategy)
    # ZeRO alone says nothing of parameters: rules, or the model's own specs, do.
    is_beside = strategy is not None and strategy.zero_stage and not strategy.parts
    if strategy is not None and rules.is_empty and not (is_beside and has_own_specs(model, mesh)):
        return tuple(shard_model(model, strategy, mesh)), ()
    found = match_paths(model, rules)
    placed = apply_rules(found, rules, mesh)
    if strategy is not None:
        if strategy.parts:
            raise UnknownOption(
                f"Rules and the strategy {strategy.name!r:.80} both give specs to parameters.",
                fix="one of them; beside rules a strategy may be zero1 or zero2.",
            )
        placed = shard_optimizer_states(placed, strategy, mesh)
    said = () if limits is None else lint_rules(found, rules, mesh, limits.replicated_bytes)
    return tuple(placed), said


def _row(placed: ShardedGroup, mesh: Mesh, optimizer: str, policy: DtypePolicy) -> PlanRow:
    group = placed.group
    held = tuple(held_by(placed, mesh, optimizer, policy))
    return PlanRow(
        path=group.name,
        n_tensors=group.n_tensors,
        held=held,
        rule=placed.rule,
        axes=group.axes or dim_meanings_of(group),
        numbers=group.numbers_text,
        declined=placed.declined,
    )


def plan_items(
    model: Model, mesh: Mesh, workload: Workload | None, optimizer: str
) -> tuple[MemoryItem, ...]:
    """Return what a device holds beside tensors and what it gathers of them.

    For training the optimizer's counters and activations, for inference the cache.
    """
    counters = counters_of(optimizer)
    if workload is None:
        return counters
    if optimizer == "none":
        return cache_items(model, mesh, workload)
    return (*counters, *activation_items(model, mesh, workload))


def _notes(asked: PlanRequest) -> tuple[str, ...]:
    notes = asked.model.notes
    if (
        asked.is_training
        and asked.strategy
        and (stage := parse_strategy(asked.strategy).zero_stage)
    ):
        what = "arrays" if stage == 1 else "arrays and the gradients"
        notes += (
            f"ZeRO stage {stage}: the optimizer's {what} are cut over the data axes too, each "
            "along its first array axis that divides; rules say nothing of it.",
        )
    if (theirs := asked.model.details.get("mesh")) and asked.strategy is None:
        ours = ",".join(f"{name}={size}" for name, size in asked.mesh.shape.items())
        if ours != theirs.replace(" ", ""):
            notes += (
                f"The model's own specs were made for the mesh {theirs}; this one is {ours}.",
            )
    if not _lacks_measures(asked):
        return notes
    missing = "activations are" if asked.is_training else "the KV cache is"
    return (
        *notes,
        f"The model's measures are not known, so {missing} not counted: --architecture, or "
        "architecture= in Python, gives them.",
    )


def _lacks_measures(asked: PlanRequest) -> bool:
    """Tell whether a workload is given and cannot be counted."""
    return asked.workload is not None and asked.model.architecture is None


def room_of(chip: Hardware, headroom: float) -> MemoryBudget:
    """Return the memory of one device, with what is to stay free of it."""
    if not (isinstance(headroom, (int, float)) and 0 <= headroom < 1):  # NaN is neither
        raise UnknownOption(
            f"The headroom is {short_repr(headroom)}.", fix="a share of the memory, from 0 up to 1."
        )
    hbm = chip.figure("hbm_bytes", needed_for="needed to say whether it fits")
    return MemoryBudget(
        hardware=chip.name, hbm_bytes=int(hbm.value), headroom=headroom, source=hbm.source
    )
