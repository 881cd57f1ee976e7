"""Grounds: what advice rests on, in words: formulas, what is not counted, and what to run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from shardlab.hardware.chips import Hardware
from shardlab.hardware.mesh_placement import n_slices
from shardlab.planner.advice.activation_margin import margin_of
from shardlab.planner.advice.advice import Candidate
from shardlab.planner.advice.candidates import Search
from shardlab.planner.advice.step_flops import FORMULAS


@dataclass(frozen=True, kw_only=True)
class Called:
    """What a person wrote, for the command that they run next."""

    model: Any
    hardware: str | Path | Hardware
    policy: Any
    headroom: float
    cache_dtype: str | None = None
    architecture: Any = None


_STEP = {
    "training": "step: max(compute, data + fsdp traffic) + tensor + expert + context traffic; "
    "parameters can be gathered ahead and gradients summed while layers compute, activations are "
    "needed at once; range: max(compute, all traffic) to compute + all traffic",
    "decoding": "step: max(compute, reading) + tensor + expert traffic, which is needed at once; "
    "range: max(compute, reading, all traffic) to their sum",
}
_BOOK = "JAX scaling book, training.md (0819a7d, 2025-02)"
# role -> what it sends, and who says so
_TRAFFIC = {
    "data": f"data: gradients summed once a step, 2 x V; under ZeRO they are reduce-scattered and "
    f"the parameters gathered, the same bytes; {_BOOK}",
    "fsdp": f"fsdp: parameters gathered forward and backward, gradients reduce-scattered, for each "
    f"microbatch; {_BOOK}",
    "tensor": "tensor: 2 all-gathers and 2 reduce-scatters of tokens x hidden for each layer and "
    "pass; Korthikanti et al. 2022, arXiv 2205.05198",
    "context": "context: keys and values gathered forward and backward, their gradients "
    "reduce-scattered, for each layer and microbatch",
    "expert": "expert: tokens x top_k x hidden to their experts and back, for each layer and pass"
    "; GShard, arXiv 2006.16668",
}

_NO_MEASURES = (
    "The model's measures are not known: memory alone is counted, without activations. "
    "--architecture, or architecture= in Python, gives them."
)


def formulas_of(search: Search, ranked: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the formulas of the estimate: of compute, of each axis, of each call of the best."""
    if not ranked or ranked[0].step is None:
        return ()
    return tuple(_formulas(search, ranked))


def _formulas(search: Search, ranked: Sequence[Candidate]) -> Iterator[str]:
    yield _STEP["training" if search.is_training else "decoding"]
    if search.is_training:
        yield FORMULAS["training"]
        yield FORMULAS["full"]
        yield FORMULAS["selective"]
    else:
        yield FORMULAS["decoding"]
        yield FORMULAS["reading"]
    yield FORMULAS["copies"]
    axes = {name for each in ranked for name, size in each.mesh if size > 1}
    for name, words in _TRAFFIC.items():
        if name in axes and (search.is_training or name in ("tensor", "expert")):
            yield words
    yield (
        "where L layers, N heads, H the width of a key and H_v of a value; V bytes of the gathered "
        "or unreduced array of a group, X its devices, n of them in a node, m nodes or slices"
    )
    best = ranked[0].step
    for each in best.exchanges if best else ():
        over = ", ".join(each.axes)
        yield (
            f"the best, {each.what} over {over}: {each.count:,} x {each.op} of "
            f"{each.payload_bytes:,} bytes, {each.formula}"
        )


def notes_of(
    search: Search, n_devices: int, *, with_context: bool, is_suited: bool
) -> Iterator[str]:
    """Yield what a reader must know before believing the numbers.

    `is_suited` says whether there was a mesh that cuts batch and model evenly.
    """
    if search.model.architecture is None:
        yield _NO_MEASURES
    elif search.workload is None:
        yield "Without batch and sequence memory alone is counted, without activations."
    else:
        shares = {search.compute_efficiency, search.stopwatch.efficiency}
        if shares == {1.0}:
            yield "At the peak (efficiency 1): real programs reach less, often half."
        untried = "Pipelining is" if with_context else "Pipeline and context parallelism are"
        yield f"{untried} not tried; between blocks tensor axes cut the sequence."
        if search.is_training:
            yield "A batch is divided into as few microbatches as fit."
            yield _margins(search)
        else:
            yield "A step is one token of every sequence, with all caches full."
            if search.stopwatch.hardware.network == "switch":
                yield "What starting a collective takes is not counted: nobody publishes it."
    if not is_suited and n_devices > 1:
        near = 1 << (n_devices.bit_length() - 1)
        yield (
            f"{n_devices:,} devices have no factors that cut this batch and these heads; "
            f"{near:,} may have."
        )
    chip = search.stopwatch.hardware
    if (slices := n_slices(n_devices, chip)) > 1:
        yield (
            f"{slices} slices: beyond {chip.pod:,} chips of a pod the outermost axes go over DCN."
        )
    if chip.network == "torus" and search.workload and search.model.architecture:
        said = ""
        if (side := chip.longest_side) is not None:
            said = f"; one longer than any side ({side} chips) is folded along those of the others"
        yield (
            "Slices are taken to be arranged for the mesh: 'laid' says which torus axes each mesh "
            f"axis goes along{said}."
        )


def _margins(search: Search) -> str:
    if search.margin is not None:
        return f"Activations get room for {search.margin:g} times their estimate, as given."
    by_margin: dict[float, list[str]] = {}
    for each in search.remats:
        by_margin.setdefault(margin_of(each), []).append(each)
    told = ", ".join(f"{n:g} (remat {', '.join(names)})" for n, names in by_margin.items())
    return (
        f"Activations get room for what XLA was measured to take, times the estimate: {told}; "
        "--activation-margin 1 trusts the estimate."
    )


def command_of(search: Search, ranked: Sequence[Candidate], called: Called) -> str:
    """Return the command that plans the best one, tensor by tensor."""
    if not ranked:
        return ""
    best, workload = ranked[0], search.workload
    given, own = called.model, search.model
    model = str(given) if isinstance(given, (str, Path)) else own.details.get("called", own.name)
    chip = called.hardware.name if isinstance(called.hardware, Hardware) else called.hardware
    words = ["shardlab", "plan", model, "--mesh", best.mesh_text, "--strategy", best.strategy]
    words += ["--hardware", str(chip), "--optimizer", search.scales.optimizer]
    if isinstance(called.policy, str):
        words += ["--policy", called.policy]
    if isinstance(called.architecture, (str, Path)):
        words += ["--architecture", str(called.architecture)]
    if called.headroom != 0.1:
        words += ["--headroom", f"{called.headroom:g}"]
    if workload is not None:
        words += ["--batch", str(workload.batch), "--sequence", str(workload.sequence)]
        words += ["--remat", best.remat] if search.is_training else []
        words += ["--cache-dtype", called.cache_dtype] if called.cache_dtype else []
        if best.n_microbatches > 1:
            words += ["--microbatch", str(workload.batch // best.n_microbatches)]
    return " ".join(map(quote, words))
