"""`advise()`: parses its arguments, searches all meshes of the devices, and ranks what fits.

If nothing fits, multiples of the devices are searched, the smallest first, by memory alone: with
the ZeRO stage, the remat policy and the microbatches that take least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidType, TooManyDevices, UnknownFigure, UnknownOption, short_repr
from shardlab.hardware.chip_file import FIGURE_UNITS
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.collective_time import parse_efficiency
from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.frameworks import Framework, parse_framework
from shardlab.hardware.operation_time import OperationTimer
from shardlab.hardware.step_timer import StepTimer
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.planner.advice.advice_assumptions import (
    AdviceRequest,
    advice_command,
    advice_formulas,
    advice_notes,
)
from shardlab.planner.advice.candidate_ranking import rank_candidates
from shardlab.planner.advice.candidate_search import CandidateSearch
from shardlab.planner.advice.mesh_conventions import MeshConventions
from shardlab.planner.advice.requested_mesh import find_requested, parse_requested_mesh
from shardlab.planner.make_plan import memory_budget
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.memory.fp8_scales import without_scales
from shardlab.planner.memory.optimizer import Optimizer, parse_optimizer
from shardlab.planner.memory.workload import REMAT_POLICIES, Workload
from shardlab.planner.model import check_model
from shardlab.planner.models.architecture import with_architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.models.optimizer_state import drop_optimizer_states
from shardlab.planner.strategies.pipeline_schedule import PipelineSchedule, parse_schedule
from shardlab.planner.timing.step_estimator import StepEstimator, parse_precision
from shardlab.planner.timing.weight_bytes import WeightCounter
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import MAX_DEVICES
from shardlab.sharding.shape import parse_size

_MULTIPLES = (*range(2, 17), *(1 << power for power in range(5, 13)))
_MAX_USABLE_MESHES = 400  # of more devices: some seconds for the largest model
_MAX_LISTED_MESHES = 100_000  # usable or not
_MAX_KINDS = 5_000  # of tensors, each of which is placed on every mesh
# Tokens, from which on a context axis is tried by default. Recipes for GPUs shard 8,192 tokens in
# two (NeMo), because pipelines hold the activations of many microbatches.
_LONG_SEQUENCE = {"torus": 32_768, "switch": 8_192}
_MIN_CONTEXT_TOKENS = 4_096  # of a sequence on one device, unless a context axis is requested
_MAX_OPTIONS = 100  # ZeRO stages or remat policies


def advise(
    model: Any,
    hardware: str | Path | Hardware,
    devices: int,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    optimizer: str | Optimizer = "adamw",
    remat: str | Sequence[str] | None = None,
    zero: Sequence[int] = (0, 1, 2),
    microbatch: int | None = None,
    context: bool | None = None,
    pipeline: bool | None = None,
    schedule: PipelineSchedule | str = "interleaved",
    framework: str | Framework | None = None,
    precision: str = "bf16",
    policy: DtypePolicy | str | None = None,
    headroom: float = 0.1,
    offload: str = "",
    offload_optimizer: bool = False,
    loss_chunks: int = 1,
    activation_margin: float = 1.0,
    cache_dtype: str | None = None,
    compute_efficiency: float | None = None,
    network_efficiency: float | None = None,
    figures: Mapping[str, float] | None = None,
    architecture: Any = None,
    mesh: Any = None,
) -> Advice:
    """Return the meshes and strategies that fit, ranked, and for the others why they lost.

    >>> advice = advise("llama3-8b", "tpu-v5p", 8, batch=16, sequence=4096)
    >>> advice.best.mesh_text, advice.best.strategy
    ('fsdp=8', 'fsdp')

    All factorizations of the devices into data, fsdp, expert (of a mixture) and tensor axes are
    tried, with every remat policy and ZeRO stage; also a context axis, which shards the sequence,
    if requested, if sequences are long, or if nothing else fits well; and pipeline stages, if
    requested or if a switched network connects several nodes. `precision` is the dtype of products
    with weights (bf16, fp8 or int8), and `framework` the software whose efficiency is assumed; by
    default it follows from hardware and mesh. `mesh` is one to show besides, with the reason why it
    is not the fastest. Without an optimizer it is advice for inference, for
    the time of one token. Without batch and sequence, or for a model of unknown architecture,
    candidates are ranked by memory alone. What fits leaves memory for `activation_margin` times the
    estimated activations. `offload`, `offload_optimizer` and `loss_chunks` are those of a
    `Workload`.
    """
    chip = _parse_chip(hardware, figures)
    n_devices = _parse_devices(devices, chip)
    parsed_schedule = parse_schedule(schedule)
    workload = _parse_workload(batch, sequence, microbatch, cache_dtype, parsed_schedule)
    if workload is not None:
        workload = replace(
            workload,
            offload=offload,
            offload_optimizer=offload_optimizer,
            loss_chunks=loss_chunks,
        )
    parsed_optimizer, dtype_policy = parse_optimizer(optimizer), parse_dtype_policy(policy)
    loaded = with_architecture(check_model(load_model(model), _MAX_KINDS), architecture)
    timed_workload = workload if loaded.architecture else None
    stored_model = drop_optimizer_states(without_scales(loaded, dtype_policy))
    estimator = StepEstimator(
        model=stored_model,
        is_training=parsed_optimizer.is_training,
        timer=StepTimer(hardware=chip, efficiency=_parse_fraction(network_efficiency)),
        operation_timer=OperationTimer(
            hardware=chip, compute_efficiency=_parse_fraction(compute_efficiency)
        ),
        framework=parse_framework(framework),
        schedule=parsed_schedule,
        dtype=parse_precision(precision),
    )
    search = CandidateSearch(
        model=stored_model,
        budget=memory_budget(chip, headroom),
        weights=WeightCounter(optimizer=parsed_optimizer, policy=dtype_policy),
        estimator=estimator,
        workload=workload,
        remat_policies=_parse_remat_policies(remat, parsed_optimizer, timed_workload),
        zero_stages=_parse_zero_stages(zero, parsed_optimizer),
        margin=_parse_margin(activation_margin),
        with_stages=_tries_stages(pipeline, chip, n_devices),
        min_context_tokens=1 if context is True else _MIN_CONTEXT_TOKENS,
    )
    request = AdviceRequest(
        model=model,
        hardware=hardware,
        policy=policy,
        headroom=headroom,
        cache_dtype=cache_dtype,
        architecture=architecture,
    )
    sizes = None if mesh is None else parse_requested_mesh(mesh, n_devices)
    advice = _make_advice(search, n_devices, request, context)
    if sizes is None:
        return advice
    return replace(advice, requested=find_requested(search, sizes, advice))


def _tries_stages(pipeline: bool | None, chip: Hardware, n_devices: int) -> bool:
    """Return whether pipelines are tried: by default where nodes are joined by slower links."""
    if pipeline is not None:
        return pipeline
    return chip.network == "switch" and n_devices > chip.domain


def _parse_fraction(efficiency: float | None) -> float | None:
    return None if efficiency is None else parse_efficiency(efficiency)


def _make_advice(
    search: CandidateSearch, n_devices: int, request: AdviceRequest, context: bool | None
) -> Advice:
    """Return the advice, with a context axis or the search for more devices if needed."""
    workload = search.workload
    if context is None and search.is_training and workload and _is_long(workload, search.hardware):
        context = True
    advice = _search_meshes(search, n_devices, request, with_context=context is True)
    with_context = context is not False and workload is not None
    # A context axis costs communication, so it is only tried if needed.
    if with_context and context is None and not _shards_heads(search, advice):
        advice = _search_meshes(search, n_devices, request, with_context=True)
    if advice.ranked or all(loser.loss_kind != "memory" for loser in advice.others):
        return advice
    n_tried, sufficient = _find_sufficient_devices(search, n_devices, with_context=with_context)
    return replace(
        advice,
        sufficient=sufficient,
        sufficient_devices=0 if sufficient is None else n_tried,
        devices_tried=n_tried,
    )


def _is_long(workload: Workload, chip: Hardware) -> bool:
    return workload.sequence >= _LONG_SEQUENCE[chip.network]


def _search_meshes(
    search: CandidateSearch, n_devices: int, request: AdviceRequest, *, with_context: bool
) -> Advice:
    model, chip = search.model, search.hardware
    meshes = search.list_meshes(n_devices, with_context=with_context)
    conventions = MeshConventions(hardware=chip, n_devices=n_devices)
    ranked, others = _rank_meshes(search, meshes, conventions)
    has_usable_mesh = any(candidate.strategy for candidate in (*ranked, *others))
    notes = advice_notes(
        search, n_devices, with_context=with_context, has_usable_mesh=has_usable_mesh
    )
    return Advice(
        model=model.name,
        source=model.source,
        n_parameters=model.n_parameters,
        hardware=chip.name,
        n_chips=n_devices // chip.devices_per_chip,
        n_devices=n_devices,
        choices=_advice_choices(search),
        budget=search.budget,
        ranked=ranked,
        others=others,
        formulas=advice_formulas(search, ranked),
        figures=_used_figures(search.estimator),
        notes=tuple(notes),
        command=advice_command(search, ranked, request),
    )


def _shards_heads(search: CandidateSearch, advice: Advice) -> bool:
    """Return whether something fits whose tensor axis does not make devices repeat all heads."""
    arch = search.model.architecture
    if advice.best is None or arch is None:
        return advice.best is not None
    return arch.heads % dict(advice.best.mesh).get("tensor", 1) == 0


def _rank_meshes(
    search: CandidateSearch,
    meshes: Iterable[Mapping[str, int]],
    conventions: MeshConventions,
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    try:
        return rank_candidates(
            (candidate for sizes in meshes for candidate in search.list_candidates(sizes)),
            conventions,
        )
    except UnknownFigure as error:
        chip, name = search.hardware.name, error.figure
        raise UnknownFigure(
            error.what,
            where=f"hardware {chip}, needed to time the collectives",
            fix=f"pass your own: advise(..., figures={{{name!r}: ...}}), on the command line "
            f'--figure {name}=..., or a TOML file with like = "{chip}" and {name} = ....',
        ) from None


def _find_sufficient_devices(
    search: CandidateSearch, n_devices: int, *, with_context: bool
) -> tuple[int, Candidate | None]:
    """Return the smallest multiple of the devices on which something fits, and its best candidate.

    If there is none, the largest number that was tried, and None.
    """
    n_usable = n_listed = n_tried = 0
    for n_more, sizes in _larger_meshes(search, n_devices, with_context):
        # Only between device counts: a count that was begun is searched completely.
        is_exhausted = n_usable > _MAX_USABLE_MESHES or n_listed > _MAX_LISTED_MESHES
        if n_more > n_tried and is_exhausted:
            break
        n_tried, n_listed = n_more, n_listed + 1
        if not sizes or search.reject_mesh(sizes):
            continue
        n_usable += 1
        if search.fits_anywhere(sizes):
            meshes = search.list_meshes(n_more, with_context=with_context)
            ranked, _ = _rank_meshes(
                search, meshes, MeshConventions(hardware=search.hardware, n_devices=n_more)
            )
            return n_more, ranked[0]
    return n_tried, None


def _larger_meshes(
    search: CandidateSearch, n_devices: int, with_context: bool
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the meshes of ever more devices; an empty one for a number that cannot be enough."""
    for multiple in _MULTIPLES:
        n_more = n_devices * multiple
        if n_more > MAX_DEVICES:
            return
        if search.min_total_bytes > search.budget.usable_bytes * n_more:
            # Skipping them keeps the search short for models far too large.
            yield n_more, {}  # not even if nothing were replicated
            continue
        try:
            for sizes in search.list_meshes(n_more, with_context=with_context):
                yield n_more, dict(sizes)
        except TooManyDevices:
            continue


def _parse_devices(devices: Any, chip: Hardware) -> int:
    if isinstance(devices, bool):  # a subclass of int, but a mistake here
        raise InvalidType(f"The number of devices is {devices}.", fix="an integer, such as 512.")
    n_devices = parse_size(devices, "the number of devices", at_least=1)
    if n_devices > MAX_DEVICES:
        raise TooManyDevices(
            f"{n_devices:,} devices are more than XLA can count.", fix=f"at most {MAX_DEVICES:,}."
        )
    if n_devices % chip.devices_per_chip:
        below = n_devices - n_devices % chip.devices_per_chip
        sizes = [size for size in (below, below + chip.devices_per_chip) if size]
        raise InvalidType(
            f"{n_devices:,} devices are not a whole number of chips: {chip.name} has "
            f"{chip.devices_per_chip} devices per chip.",
            fix=f"{' or '.join(f'{size:,}' for size in sizes)} devices.",
        )
    return n_devices


def _parse_chip(hardware: Any, figures: Mapping[str, float] | None) -> Hardware:
    if not isinstance(hardware, (str, Path, Hardware)):
        raise InvalidType(
            f"{short_repr(hardware)} is not hardware.", fix='a name such as "tpu-v5p", or a file.'
        )
    if figures is not None and not isinstance(figures, Mapping):
        raise InvalidType(
            f"{short_repr(figures)} is not a mapping of figures.",
            fix='such as {"node_egress": 2e11}.',
        )
    return parse_hardware(hardware, figures)


def _parse_zero_stages(zero: Any, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the ZeRO stages to try over a data axis; stage 3 is an fsdp axis."""
    stages = _as_tuple(zero)
    if not stages or any(isinstance(stage, bool) or stage not in (0, 1, 2) for stage in stages):
        raise InvalidType(
            f"The ZeRO stages are {short_repr(zero)}.",
            fix="some of 0, 1 and 2; stage 3 is what an fsdp axis does.",
        )
    return stages if optimizer.is_training else (0,)


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Return listed values, or the one value itself; an endless iterator is not read to its end."""
    if isinstance(values, (str, int)) or not isinstance(values, Iterable):
        return (values,)
    return tuple(islice(values, _MAX_OPTIONS))


def _parse_workload(
    batch: Any, sequence: Any, microbatch: Any, cache: Any, schedule: PipelineSchedule
) -> Workload | None:
    if batch is None and sequence is None and microbatch is None and cache is None:
        return None
    if batch is None or sequence is None:
        missing = "batch" if batch is None else "sequence"
        raise InvalidType(
            f"There is no {missing}.",
            fix="batch and sequence together, or neither: then only memory is counted.",
        )
    return Workload(
        batch=batch,
        sequence=sequence,
        microbatch=microbatch,
        cache_dtype=parse_dtype(cache or "bf16"),
        schedule=schedule,
    )


def _parse_remat_policies(
    remat: str | Sequence[str] | None, optimizer: Optimizer, workload: Workload | None
) -> tuple[str, ...]:
    if not optimizer.is_training or workload is None:
        return ("full",)
    if remat is None:
        return tuple(REMAT_POLICIES)
    policies = _as_tuple(remat)
    if not policies:
        raise InvalidType(
            f"The remat policies are {short_repr(remat)}.",
            fix="some of " + ", ".join(REMAT_POLICIES),
        )
    # Workload validates the policy, and turns 4 into "4".
    return tuple(Workload(batch=1, sequence=1, remat=policy).remat for policy in policies)


def _parse_margin(margin: Any) -> float:
    """Return by how much the user multiplies the estimate of activations; 1 trusts it."""
    if margin is None:
        return 1.0
    is_number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    if not is_number or not isfinite(margin) or margin <= 0:
        raise UnknownOption(
            f"The activation margin is {short_repr(margin)}.",
            fix="a number such as 1.5, by which the estimate is multiplied; 1 trusts it.",
        )
    return float(margin)


def _advice_choices(search: CandidateSearch) -> dict[str, str]:
    optimizer, policy = search.weights.optimizer, search.weights.policy
    choices = {"optimizer": optimizer.name}
    if search.is_training:
        has_master = optimizer.has_master if policy.with_master is None else policy.with_master
        choices["policy"] = str(replace(policy, with_master=has_master))
    elif policy.parameters is not None:
        choices["policy"] = f"parameters {policy.parameters.short}"
    if search.workload is not None:
        choices["batch"] = str(search.workload.batch)
        choices["sequence"] = str(search.workload.sequence)
        if search.is_training:
            choices["activation_margin"] = f"{search.margin:g}"
        else:
            choices["cache_dtype"] = search.workload.cache_dtype.short
    efficiencies = {
        "compute_efficiency": search.estimator.operation_timer.compute_efficiency,
        "network_efficiency": search.estimator.timer.efficiency,
    }
    for name, efficiency in efficiencies.items():
        choices[name] = "calibrated" if efficiency is None else f"{efficiency:g}"
    return choices


def _used_figures(estimator: StepEstimator) -> tuple[FigureUsed, ...]:
    hbm = estimator.timer.hardware.figure("hbm_bytes")
    figures = {hbm.name: hbm, **estimator.operation_timer.used, **estimator.timer.used}
    return tuple(
        FigureUsed(
            name=figure.name,
            value=figure.value,
            unit=FIGURE_UNITS[figure.name],
            source=figure.source,
        )
        for figure in figures.values()
    )
