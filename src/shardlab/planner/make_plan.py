"""`plan()`: parses its arguments, shards the model, counts memory, and collects findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidType, UnknownOption, short_repr
from shardlab.findings.finding import Finding
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.frameworks import Framework, parse_framework
from shardlab.planner.findings.finding_limits import Limits, parse_limits
from shardlab.planner.findings.mesh_usage import unused_axes
from shardlab.planner.findings.plan_findings import plan_findings
from shardlab.planner.memory.device_bytes import (
    compute_copy_bytes,
    device_arrays,
    optimizer_counters,
)
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.memory.fp8_scales import without_scales
from shardlab.planner.memory.gathered_weights import gather_weights
from shardlab.planner.memory.kv_cache import kv_cache_items
from shardlab.planner.memory.optimizer import Optimizer, parse_optimizer
from shardlab.planner.memory.step_memory import (
    StepWeights,
    gathered_item,
    memory_profile,
    step_memory_items,
)
from shardlab.planner.memory.workload import Workload, parse_workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.model import Model, check_model
from shardlab.planner.models.architecture import with_architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.models.optimizer_state import drop_optimizer_states
from shardlab.planner.plan import Choice, MemoryBudget, MemoryItem, Plan, PlanRow
from shardlab.planner.plan_mesh import parse_plan_mesh
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.rules.lint import lint_rules
from shardlab.planner.rules.logical_axes import resolve_semantics
from shardlab.planner.rules.matching import ShardedGroup, apply_rules, has_own_specs
from shardlab.planner.rules.path_search import RuleMatch, match_paths
from shardlab.planner.rules.rules import Rules, parse_rules
from shardlab.planner.rules.strategy_rules import derive_rules, rule_lines_of
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.strategies.layer_stack import merge_stack_options
from shardlab.planner.strategies.layer_stack import stack_model as stack_tensors
from shardlab.planner.strategies.strategy import (
    Strategy,
    parse_strategy,
    shard_model,
    shard_optimizer_states,
    stack_option_for,
)
from shardlab.planner.timing.timing_defaults import mesh_framework
from shardlab.sharding.mesh import Mesh, mesh_text


def plan(
    model: Any,
    mesh: Any = None,
    *,
    rules: Any = None,
    strategy: str | Strategy | None = None,
    hardware: str | Path | Hardware | None = None,
    optimizer: str | Optimizer = "none",
    policy: Any = None,
    workload: Workload | None = None,
    headroom: float = 0.1,
    limits: Limits | str | int | None = None,
    stack: str | None = None,
    n_devices: int | None = None,
    architecture: Any = None,
    framework: str | Framework | None = None,
) -> Plan:
    """Return what each device of a mesh stores of a model.

    >>> llama = plan("llama3-8b", "fsdp=8", strategy="fsdp", optimizer="adamw")
    >>> llama.bytes_of("parameters") * 8 > 16e9
    True

    Without an optimizer it is a plan for inference. The model is a name, a file, or an object; the
    specs come from the rules, from a strategy, or from the model itself. The dtype policy is a name
    or text (`parse_dtype_policy`); `stack` stacks "experts", "layers" or "all" of both into one
    array each. Without a mesh, the mesh of the model's own specs is used, if its source has one.
    One size of the mesh may be -1, with `n_devices` or a slice such as v5p-1024 as the hardware.
    `architecture` describes a model whose source does not (`parse_architecture`). `framework` is
    the software whose buffers are counted: by default the usual one for the hardware, else XLA.
    """
    request = _parse_request(
        model=model,
        mesh=mesh,
        rules=rules,
        strategy=strategy,
        hardware=hardware,
        optimizer=optimizer,
        policy=policy,
        workload=workload,
        headroom=headroom,
        stack=stack,
        n_devices=n_devices,
        architecture=architecture,
        framework=framework,
    )
    finding_limits = parse_limits(limits)
    placement = _place_tensors(request, finding_limits)
    rule_lines = rule_lines_of(request.rules)
    has_derived_rules = not rule_lines and request.strategy is not None
    draft = replace(
        _make_plan(request, _plan_rows(request, placement), placement),
        rules=derive_rules(placement.groups) if has_derived_rules else rule_lines,
        has_derived_rules=has_derived_rules,
    )
    findings = plan_findings(
        draft,
        request,
        _Replanner(request, placement, draft),
        finding_limits,
        rule_findings=placement.findings,
    )
    return replace(draft, findings=(*placement.findings, *findings))


def _parse_request(
    *,
    model: Any,
    mesh: Any,
    rules: Any,
    strategy: Any,
    hardware: Any,
    optimizer: Any,
    policy: Any,
    workload: Any,
    headroom: Any,
    stack: Any,
    n_devices: Any,
    architecture: Any,
    framework: Any,
) -> PlanRequest:
    """Parse the arguments of `plan()`: the one place where its text becomes values."""
    # Cheap arguments first: a misspelled policy must not wait until a checkpoint is read.
    dtype_policy = parse_dtype_policy(policy)
    loaded = with_architecture(check_model(load_model(model)), architecture)
    plan_mesh = parse_plan_mesh(_own_mesh(loaded) if mesh is None else mesh, n_devices, hardware)
    parsed_rules = parse_rules(rules)
    parsed_strategy = None if strategy is None else parse_strategy(strategy)
    stack_over = merge_stack_options(
        stack,
        parsed_rules.stack,
        None if parsed_strategy is None else stack_option_for(parsed_strategy),
    )
    parsed_optimizer = parse_optimizer(optimizer)
    # The model as its program stores it: fp8 scales may be merged, states of an optimizer in the
    # tree are replaced by those that are counted, and layers or experts may be stacked.
    prepared = without_scales(loaded, dtype_policy)
    if parsed_optimizer.is_training:
        prepared = drop_optimizer_states(prepared)
    if stack_over is not None:
        prepared = stack_tensors(prepared, stack_over)
    budget = chip = None
    if plan_mesh.hardware is not None:
        chip = parse_hardware(plan_mesh.hardware)
        budget = memory_budget(chip, headroom)
    return PlanRequest(
        model=prepared,
        mesh=plan_mesh.mesh,
        # Whose reading of logical rules applies (linen or nnx) depends on the model.
        rules=resolve_semantics(prepared, parsed_rules),
        strategy=parsed_strategy,
        optimizer=parsed_optimizer,
        policy=dtype_policy,
        workload=parse_workload(workload),
        budget=budget,
        hardware=chip,
        framework=parse_framework(framework),
        stack=stack_over,
    )


def _own_mesh(model: Model) -> str:
    """Return the mesh that a model's source names."""
    if (mesh := model.details.get("mesh")) is None:
        raise InvalidType(
            f"No mesh was given, and {model.name!r:.80} does not name one.",
            fix='plan(model, "fsdp=4,tensor=2"): mesh axes with sizes, or a slice (v5p-1024).',
        )
    return mesh


@dataclass(frozen=True, kw_only=True)
class _Placement:
    """The tensors with their specs, the rule of each as an index of `Plan.rules`, lint findings."""

    groups: tuple[ShardedGroup, ...]
    rule_indices: tuple[int | None, ...]
    findings: tuple[Finding, ...] = ()


def _place_tensors(request: PlanRequest, limits: Limits | None = None) -> _Placement:
    """Shard every tensor of the model; with limits the rules are linted too."""
    model, mesh, rules = request.model, request.mesh, request.rules
    strategy = request.strategy
    framework = _framework(request)
    if strategy is not None and framework is not None:
        strategy = replace(strategy, flat_states=framework.flat_states)
    # ZeRO alone does not shard parameters: rules, or the model's own specs, do.
    is_zero_only = strategy is not None and strategy.zero_stage and not strategy.parts
    has_specs = not rules.is_empty or (is_zero_only and has_own_specs(model, mesh))
    if strategy is not None and not has_specs:
        groups = tuple(shard_model(model, strategy, mesh))
        return _Placement(groups=groups, rule_indices=(None,) * len(groups))
    matches = match_paths(model, rules)
    sharded = apply_rules(matches, rules, mesh)
    if strategy is not None:
        if strategy.parts:
            raise UnknownOption(
                f"Rules and the strategy {strategy.name!r:.80} both give specs to parameters.",
                fix="one of them; on top of rules a strategy may be zero1 or zero2.",
            )
        sharded = shard_optimizer_states(sharded, strategy, mesh)
    findings = () if limits is None else lint_rules(matches, rules, mesh, limits.replicated_bytes)
    return _Placement(
        groups=tuple(sharded),  # one for each match, in the same order
        rule_indices=tuple(_rule_index(match, rules) for match in matches),
        findings=findings,
    )


def _rule_index(match: RuleMatch, rules: Rules) -> int | None:
    """Return the position in `rule_lines_of(rules)` of the rule that gave the spec."""
    # `rule_lines_of` lists the specs of single paths before the patterns.
    if match.path_specs:
        return match.path_specs[0] if len(match.path_specs) == 1 else None
    return len(rules.specs) + match.rules[0] if match.rules else None


class _Replanner:
    """Plans a request with other options, for remedies; reuses rows that do not depend on them."""

    def __init__(self, request: PlanRequest, placement: _Placement, plan: Plan) -> None:
        # The rules are stored with their placement: while they are alive, no other rules can get
        # the same id, which is part of the key.
        self._placements = {self._cache_key(request): (placement, request.rules)}
        self._rows = {(self._cache_key(request), request.policy): plan.rows}

    def __call__(self, request: PlanRequest) -> Plan:
        key = self._cache_key(request)
        if key not in self._placements:
            self._placements[key] = (_place_tensors(request), request.rules)
        placement, _ = self._placements[key]
        if (key, request.policy) not in self._rows:
            self._rows[key, request.policy] = _plan_rows(request, placement)
        return _make_plan(request, self._rows[key, request.policy], placement)

    @staticmethod
    def _cache_key(request: PlanRequest) -> tuple[object, ...]:
        return request.strategy, request.mesh, id(request.rules)


def _plan_rows(request: PlanRequest, placement: _Placement) -> tuple[PlanRow, ...]:
    return tuple(
        PlanRow(
            path=sharded.group.name,
            n_tensors=sharded.group.n_tensors,
            arrays=tuple(device_arrays(sharded, request.mesh, request.optimizer, request.policy)),
            rule=sharded.rule,
            rule_index=rule_index,
            dim_names=sharded.group.axes or dim_meanings_of(sharded.group),
            numbers=sharded.group.numbers_text,
            skipped=sharded.declined,
        )
        for sharded, rule_index in zip(placement.groups, placement.rule_indices, strict=True)
    )


def _make_plan(request: PlanRequest, rows: tuple[PlanRow, ...], placement: _Placement) -> Plan:
    """Return the plan without rules and findings."""
    items = _plan_items(request, rows, placement)
    if request.workload and request.workload.offload_optimizer:
        rows = tuple(map(_without_states, rows))
    return Plan(
        model=request.model.name,
        source=request.model.source,
        mesh=tuple(request.mesh.shape.items()),
        n_parameters=request.model.n_parameters,
        rows=rows,
        items=items,
        budget=request.budget,
        choices=_plan_choices(request),
        notes=_plan_notes(request),
    )


def _plan_choices(request: PlanRequest) -> dict[str, Choice]:
    """Return the options of a plan that it was made with, without those at their default."""
    choices: dict[str, Choice] = {
        "strategy": "" if request.strategy is None else request.strategy.name,
        "optimizer": request.optimizer.name,
    }
    if request.policy != DtypePolicy():
        choices["policy"] = str(request.policy)
    if request.stack and request.model.is_stacked:
        choices["stack"] = request.stack
    if request.rules.semantics:
        choices["logical_semantics"] = request.rules.semantics
    if request.workload:
        choices |= request.workload.choices(request.is_training)
        if request.is_training and workload_shards(request.mesh).stage.n_shards > 1:
            choices["schedule"] = str(request.workload.schedule)
    if _lacks_architecture(request):
        choices["architecture"] = "unknown"
    return choices


def _without_unused_axes(mesh: Mesh, rows: Iterable[PlanRow]) -> Mesh:
    """Return the mesh without the axes that shard nothing: they divide no activations either."""
    if not (unused := unused_axes(rows, mesh)):
        return mesh
    return Mesh({name: size for name, size in mesh.shape.items() if name not in unused})


def _plan_items(
    request: PlanRequest, rows: Sequence[PlanRow], placement: _Placement
) -> tuple[MemoryItem, ...]:
    """Return what a device stores besides tensors.

    In training these are the optimizer's counters and activations, in inference the KV cache.
    """
    counters = optimizer_counters(request.optimizer)
    if (workload := request.workload) is None:
        return counters
    model, working_mesh = request.model, _without_unused_axes(request.mesh, rows)
    # Gathered weights need the full mesh: their specs name its axes.
    gathered = gather_weights(
        placement.groups, request.mesh, request.policy, workload.dtype, with_text=True
    )
    # Training has no cache, and inference frees the activations of a layer at once.
    if not request.is_training:
        return (*kv_cache_items(model, working_mesh, workload), *gathered_item(gathered))
    if model.architecture is None:
        return (*counters, *gathered_item(gathered))
    arrays = [array for row in rows for array in row.arrays]
    weights = StepWeights(
        parameters=sum(row.bytes_of("parameters") for row in rows),
        gradients=sum(row.bytes_of("gradients") for row in rows),
        optimizer=sum(row.bytes_of("optimizer") for row in rows),
        compute_copies=compute_copy_bytes(arrays, workload.dtype),
        gathered=gathered,
    )
    shards = workload_shards(working_mesh)
    framework = _framework(request)
    profile = memory_profile(None if framework is None else framework.name)
    items = step_memory_items(model.architecture, shards, workload, weights, profile)
    return (*counters, *items)


def _framework(request: PlanRequest) -> Framework | None:
    if request.framework is not None or request.hardware is None:
        return request.framework
    return mesh_framework(request.hardware, request.mesh, request.model.architecture)


def _without_states(row: PlanRow) -> PlanRow:
    """Return a row whose optimizer states are in the memory of the host."""
    return replace(row, arrays=tuple(array for array in row.arrays if array.kind != "optimizer"))


def _plan_notes(request: PlanRequest) -> tuple[str, ...]:
    notes = request.model.notes
    stage = request.strategy.zero_stage if request.strategy is not None else 0
    if request.is_training and stage:
        arrays = "states" if stage == 1 else "states and the gradients"
        notes += (
            f"ZeRO stage {stage}: the optimizer's {arrays} are also sharded over the data axes, "
            "each along its first divisible dimension; rules do not show it.",
        )
    notes += tuple(_stage_notes(request))
    own_mesh = request.model.details.get("mesh")
    if own_mesh and request.strategy is None:
        planned_mesh = mesh_text(request.mesh.shape.items())
        if planned_mesh != own_mesh.replace(" ", ""):
            notes += (
                f"The model's own specs were made for the mesh {own_mesh}; this one is "
                f"{planned_mesh}.",
            )
    if not _lacks_architecture(request):
        return notes
    missing = "activations are" if request.is_training else "the KV cache is"
    return (
        *notes,
        f"The model's architecture is unknown, so {missing} not counted: pass --architecture, or "
        "architecture= in Python.",
    )


def _stage_notes(request: PlanRequest) -> Iterator[str]:
    """Yield which pipeline stage is counted, if stages have different numbers of layers."""
    arch, strategy = request.model.architecture, request.strategy
    if arch is None or strategy is None or "pipeline" not in strategy.parts:
        return
    stages = workload_shards(request.mesh).stage
    if arch.layers % stages.n_shards:
        yield (
            f"{arch.layers} layers are not divisible by {stages.n_shards} stages: some have "
            f"{stages.per_device(arch.layers)}, the others {arch.layers // stages.n_shards}; the "
            "fullest is counted."
        )


def _lacks_architecture(request: PlanRequest) -> bool:
    """Return whether there is a workload that cannot be counted."""
    return request.workload is not None and request.model.architecture is None


def memory_budget(chip: Hardware, headroom: float) -> MemoryBudget:
    """Return the memory of one device and the headroom to leave free."""
    if not (isinstance(headroom, (int, float)) and 0 <= headroom < 1):  # also rejects NaN
        raise UnknownOption(
            f"The headroom is {short_repr(headroom)}.",
            fix="a fraction of the memory, at least 0 and less than 1.",
        )
    hbm = chip.figure("hbm_bytes", needed_for="needed to decide whether it fits")
    return MemoryBudget(
        hardware=chip.name, hbm_bytes=int(hbm.value), headroom=headroom, source=hbm.source
    )
