"""Advice: every way to cut a model over so many chips, ranked by the estimated time of a step.

Growth: how many more chips would be enough, where a model fits on none of the meshes.

Multiples of the chips are searched for real, the smallest first, by memory alone: with the ZeRO
stage, the remat policy and the microbatches that take least.

Margins: how many times their estimate activations may take, as measured.

>>> margin_of("none"), margin_of("4"), margin_of("none", given=1.0)
(2.1, 1.9, 1.0)

The formulas count each tensor that the backward pass reads once; XLA keeps more. The figures are
the largest of `temp_size_in_bytes` over the estimate for a small Llama (docs/plan-memory.md,
"Activations and the KV cache"; tests/plans/test_compiled.py measures them again).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidType, TooManyDevices, UnknownFigure, short_repr
from shardlab.hardware.chip_file import FIGURES
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.collective_time import parse_efficiency
from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.step_timer import StepTimer
from shardlab.planner.advice.activation_margin import margin_of, parse_margin
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.planner.advice.assumptions import Called, command_of, formulas_of, notes_of
from shardlab.planner.advice.candidates import Search
from shardlab.planner.advice.ranking import rank
from shardlab.planner.advice.weight_bytes import Scales
from shardlab.planner.make_plan import room_of
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.memory.fp8_scales import without_scales
from shardlab.planner.memory.optimizer import parse_optimizer
from shardlab.planner.memory.workload import REMAT, Workload
from shardlab.planner.model import check_model
from shardlab.planner.models.architecture import with_architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.models.optimizer_state import drop_optimizer_states
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import MAX_DEVICES
from shardlab.sharding.shape import parse_size

_MOST_TRIED = 400  # meshes that suit: some seconds for the largest model
_MOST_SEEN = 100_000  # and that do not
_MULTIPLES = (*range(2, 17), *(1 << n for n in range(5, 13)))


def enough_chips(
    search: Search, n_chips: int, *, with_context: bool
) -> tuple[int, Candidate | None]:
    """Return the least multiple of the chips on which something fits, and the best of that.

    Where none was found, the largest number that was tried, and nothing.
    """
    tried = seen = most = 0
    for n, sizes in _larger(search, n_chips, with_context):
        if n > most and (tried > _MOST_TRIED or seen > _MOST_SEEN):
            break
        most, seen = n, seen + 1
        if not sizes or search.refusal(sizes):
            continue
        tried += 1
        if search.fits(sizes):
            per_chip = search.stopwatch.hardware.devices_per_chip
            meshes = search.meshes(n * per_chip, with_context=with_context)
            ranked, _ = rank(each for mesh in meshes for each in search.candidates(mesh))
            return n, ranked[0]
    return most, None


def _larger(
    search: Search, n_chips: int, with_context: bool
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the meshes of ever more chips, none of a number that has too little memory in all."""
    per_chip = search.stopwatch.hardware.devices_per_chip
    for multiple in _MULTIPLES:
        n = n_chips * multiple
        if n * per_chip > MAX_DEVICES:
            return
        if search.least_bytes > search.room.usable_bytes * n * per_chip:
            yield n, {}  # not even if nothing were held twice
            continue
        try:
            for sizes in search.meshes(n * per_chip, with_context=with_context):
                yield n, dict(sizes)
        except TooManyDevices:
            continue


_MOST_KINDS = 5_000  # of tensors, each of which is placed on every mesh
_MOST_LISTED = 100  # ZeRO stages or remat policies


def advise(
    model: Any,
    hardware: str | Path | Hardware,
    chips: int,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    optimizer: str = "adamw",
    remat: str | Sequence[str] | None = None,
    zero: Sequence[int] = (0, 1, 2),
    microbatch: int | None = None,
    context: bool | None = None,
    policy: DtypePolicy | str | None = None,
    headroom: float = 0.1,
    activation_margin: float | None = None,
    cache_dtype: str | None = None,
    compute_efficiency: float = 1.0,
    network_efficiency: float = 1.0,
    figures: Mapping[str, float] | None = None,
    architecture: Any = None,
) -> Advice:
    """Return the meshes and strategies that fit, ranked, and for the others why they lost.

    >>> advice = advise("llama3-8b", "tpu-v5p", 8, batch=16, sequence=4096)
    >>> advice.best.mesh_text, advice.best.strategy
    ('data=8', 'zero2')

    All factorisations of the devices into data, fsdp, expert (of a mixture) and tensor axes are
    tried, with every remat policy and ZeRO stage that is given; a context axis, which cuts the
    sequence, where it is asked for, or where nothing else fits well. Without an optimizer it is
    advice for inference, for the time of one token. Without batch and sequence, or for a model
    whose measures are not known, candidates are ranked by memory alone. What fits has room for
    `activation_margin` times the estimated activations, else for as much as was measured.
    """
    n_chips, chip = _chips(chips), _chip(hardware, figures)
    workload = _workload(batch, sequence, microbatch, cache_dtype)
    optimizer, dtypes = parse_optimizer(optimizer).name, parse_dtype_policy(policy)
    loaded = with_architecture(check_model(load_model(model), _MOST_KINDS), architecture)
    search = Search(
        model=drop_optimizer_states(without_scales(loaded, dtypes)),
        room=room_of(chip, headroom),
        scales=Scales(optimizer=optimizer, policy=dtypes, gathers=workload is not None),
        stopwatch=StepTimer(hardware=chip, efficiency=parse_efficiency(network_efficiency)),
        workload=workload,
        remats=_remats(remat, optimizer, workload if loaded.architecture else None),
        zeros=_stages(zero, optimizer),
        compute_efficiency=parse_efficiency(compute_efficiency),
        margin=parse_margin(activation_margin),
    )
    called = Called(
        model=model,
        hardware=hardware,
        policy=policy,
        headroom=headroom,
        cache_dtype=cache_dtype,
        architecture=architecture,
    )
    return _found(search, n_chips, called, context)


def _found(search: Search, n_chips: int, called: Called, context: bool | None) -> Advice:
    """Return the advice, with the context axis where it is needed, or with how many chips are."""
    found = _advice(search, n_chips, called, context is True)
    with_context = context is not False and search.workload is not None
    if with_context and context is None and not _is_sound(search, found):
        found = _advice(search, n_chips, called, True)
    if found.ranked or all(each.why != "memory" for each in found.others):
        return found
    n_enough, enough = enough_chips(search, n_chips, with_context=with_context)
    return replace(found, enough=enough, enough_chips=n_enough)


def _advice(search: Search, n_chips: int, called: Called, with_context: bool) -> Advice:
    model, chip = search.model, search.stopwatch.hardware
    n_devices = n_chips * chip.devices_per_chip
    ranked, others = _searched(search, search.meshes(n_devices, with_context=with_context))
    is_suited = any(each.strategy for each in (*ranked, *others))
    return Advice(
        model=model.name,
        source=model.source,
        n_parameters=model.n_parameters,
        hardware=chip.name,
        n_chips=n_chips,
        n_devices=n_devices,
        choices=_choices(search),
        room=search.room,
        ranked=ranked,
        others=others,
        formulas=formulas_of(search, ranked),
        figures=_figures(search.stopwatch),
        notes=tuple(notes_of(search, n_devices, with_context=with_context, is_suited=is_suited)),
        command=command_of(search, ranked, called),
    )


def _is_sound(search: Search, found: Advice) -> bool:
    """Return whether something fits whose tensor axis does not make devices repeat all heads."""
    arch = search.model.architecture
    if found.best is None or arch is None:
        return found.best is not None
    return arch.heads % dict(found.best.mesh).get("tensor", 1) == 0


def _searched(search: Search, meshes: Iterable[Mapping[str, int]]) -> tuple[Any, Any]:
    try:
        return rank(each for sizes in meshes for each in search.candidates(sizes))
    except UnknownFigure as error:
        chip = search.stopwatch.hardware
        name = str(error.what).split("'")[1]
        raise UnknownFigure(
            error.what,
            where=f"hardware {chip.name}, needed to time what the devices exchange",
            fix=f"give your own: advise(..., figures={{{name!r}: ...}}), on the command line "
            f'--figure {name}=..., or a TOML file with like = "{chip.name}" and {name} = ....',
        ) from None


def _chips(chips: Any) -> int:
    if isinstance(chips, bool):  # an int to Python, never a count to a person
        raise InvalidType(f"The number of chips is {chips}.", fix="a whole number, such as 512.")
    number = parse_size(chips, "the chips", at_least=1)
    if number > MAX_DEVICES:
        raise TooManyDevices(
            f"{number:,} chips are more than XLA can count.", fix=f"at most {MAX_DEVICES:,}."
        )
    return number


def _chip(hardware: Any, figures: Mapping[str, float] | None) -> Hardware:
    if not isinstance(hardware, (str, Path, Hardware)):
        raise InvalidType(
            f"{short_repr(hardware)} is not a chip.", fix='a name such as "tpu-v5p", or a file.'
        )
    if figures is not None and not isinstance(figures, Mapping):
        raise InvalidType(
            f"{short_repr(figures)} are no figures.", fix='such as {"node_egress": 2e11}.'
        )
    return parse_hardware(hardware, figures)


def _stages(zero: Any, optimizer: str) -> tuple[int, ...]:
    """Return the ZeRO stages to try over a data axis; stage 3 is an fsdp axis."""
    stages = _several(zero)
    if not stages or any(isinstance(each, bool) or each not in (0, 1, 2) for each in stages):
        raise InvalidType(
            f"The ZeRO stages are {short_repr(zero)}.",
            fix="some of 0, 1 and 2; stage 3 is what an fsdp axis does.",
        )
    return stages if optimizer != "none" else (0,)


def _several(given: Any) -> tuple[Any, ...]:
    """Return what is listed, or the one thing itself; never more than anybody means."""
    if isinstance(given, (str, int)) or not isinstance(given, Iterable):
        return (given,)
    return tuple(islice(given, _MOST_LISTED))


def _workload(batch: Any, sequence: Any, microbatch: Any, cache: Any) -> Workload | None:
    if batch is None and sequence is None and microbatch is None and cache is None:
        return None
    if batch is None or sequence is None:
        missing = "batch" if batch is None else "sequence"
        raise InvalidType(
            f"There is no {missing}.",
            fix="batch and sequence together, or neither of them: then memory alone is counted.",
        )
    return Workload(
        batch=batch,
        sequence=sequence,
        microbatch=microbatch,
        cache_dtype=parse_dtype(cache or "bf16"),
    )


def _remats(
    remat: str | Sequence[str] | None, optimizer: str, workload: Workload | None
) -> tuple[str, ...]:
    if optimizer == "none" or workload is None:
        return ("full",)
    if remat is None:
        return tuple(REMAT)
    given = _several(remat)
    if not given:
        raise InvalidType(
            f"The remat policies are {short_repr(remat)}.", fix="some of " + ", ".join(REMAT)
        )
    return tuple(Workload(batch=1, sequence=1, remat=each).remat for each in given)


def _choices(search: Search) -> dict[str, str]:
    choices, policy = {"optimizer": search.scales.optimizer}, search.scales.policy
    if search.is_training:
        usual = parse_optimizer(search.scales.optimizer).has_master
        wanted = usual if policy.with_master is None else policy.with_master
        choices["policy"] = str(replace(policy, with_master=wanted))
    elif policy.parameters is not None:
        choices["policy"] = f"parameters {policy.parameters.short}"
    if search.workload is not None:
        choices["batch"] = str(search.workload.batch)
        choices["sequence"] = str(search.workload.sequence)
        if search.is_training:
            margins = {each: margin_of(each, search.margin) for each in search.remats}
            choices["activation_margin"] = ", ".join(f"{k} {v:g}" for k, v in margins.items())
        else:
            choices["cache_dtype"] = search.workload.cache_dtype.short
    choices["compute_efficiency"] = f"{search.compute_efficiency:g}"
    choices["network_efficiency"] = f"{search.stopwatch.efficiency:g}"
    return choices


def _figures(stopwatch: StepTimer) -> tuple[FigureUsed, ...]:
    hbm = stopwatch.hardware.figure("hbm_bytes")
    used = {hbm.name: hbm, **stopwatch.used}
    return tuple(
        FigureUsed(name=each.name, value=each.value, unit=FIGURES[each.name], source=each.source)
        for each in used.values()
    )
