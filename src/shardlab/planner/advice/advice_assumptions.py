"""The assumptions of advice: formulas, what is not counted, and the command to run next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from shardlab.hardware.chips import Hardware
from shardlab.hardware.mesh_placement import n_slices
from shardlab.planner.advice.advice import Candidate
from shardlab.planner.advice.candidate_search import CandidateSearch
from shardlab.planner.memory.workload import Workload
from shardlab.planner.timing.step_communication import COMMUNICATION_FORMULAS
from shardlab.planner.timing.step_estimator import PRECISIONS
from shardlab.planner.timing.step_operations import OPERATION_FORMULAS

_DEFAULT_HEADROOM = 0.1  # of `shardlab plan`: an equal one is left out of the command
_STEP_FORMULAS = {
    "training": "step: max(operations, data + fsdp communication) + overlap_loss x the shorter of "
    "both + tensor + expert + context + stage communication + bubble; parameters can be gathered "
    "ahead and gradients reduced while layers compute, activations are needed at once",
    "decoding": "step: operations + tensor + expert communication, which is needed at once",
}


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """The arguments of `advise()` as the user wrote them, for the command to run next."""

    model: Any
    hardware: str | Path | Hardware
    policy: Any
    headroom: float
    cache_dtype: str | None = None
    architecture: Any = None


def advice_formulas(search: CandidateSearch, ranked: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the formulas of the estimate: compute, each axis, each collective of the best."""
    if not ranked or ranked[0].step is None:
        return ()
    return tuple(_formula_lines(search, ranked))


def _formula_lines(search: CandidateSearch, ranked: Sequence[Candidate]) -> Iterator[str]:
    yield _STEP_FORMULAS["training" if search.is_training else "decoding"]
    yield from OPERATION_FORMULAS["all"]
    yield from OPERATION_FORMULAS["training" if search.is_training else "decoding"]
    if best := ranked[0].step:
        yield (
            f"range: {100 * best.error:.0f} % up and down, within which 90 % of published runs on "
            "this kind of hardware are (docs/planner-accuracy.md)"
        )
    axes = {name for candidate in ranked for name, size in candidate.mesh if size > 1}
    for name, formula in COMMUNICATION_FORMULAS.items():
        if name in axes and (search.is_training or name in ("tensor", "expert")):
            yield formula
    yield (
        "where L layers, N heads, H the width of a key and H_v of a value; V bytes of the gathered "
        "or unreduced array of a group, X its devices, n of them in a node, m nodes or slices"
    )
    best = ranked[0].step
    for collective in best.collectives if best else ():
        yield (
            f"the best, {collective.what} over {', '.join(collective.axes)}: "
            f"{collective.count:,} x {collective.op} of {collective.payload_bytes:,} bytes, "
            f"{collective.formula}"
        )


def advice_notes(
    search: CandidateSearch, n_devices: int, *, with_context: bool, has_usable_mesh: bool
) -> Iterator[str]:
    """Yield what a reader must know before trusting the numbers.

    `has_usable_mesh` is whether any mesh divides both batch and model.
    """
    if search.model.architecture is None:
        yield (
            "The model's architecture is unknown: only memory is counted, without activations. "
            "Pass --architecture, or architecture= in Python."
        )
    elif search.workload is None:
        yield "Without batch and sequence only memory is counted, without activations."
    else:
        yield from _estimate_notes(search, with_context)
    if not has_usable_mesh and n_devices > 1:
        power_of_two = 1 << (n_devices.bit_length() - 1)
        yield (
            f"No factorization of {n_devices:,} devices divides this batch and these heads; "
            f"try {power_of_two:,}."
        )
    chip = search.hardware
    if (slices := n_slices(n_devices, chip)) > 1:
        yield (
            f"{slices} slices: beyond {chip.pod:,} chips of a pod the outermost axes go over DCN."
        )
    if chip.network == "torus" and search.workload and search.model.architecture:
        folding = ""
        if (side := chip.longest_side) is not None:
            folding = f"; an axis longer than any side ({side} chips) is folded along others"
        yield (
            "Slices are assumed to be arranged for the mesh: 'placement' says which torus axes "
            f"each mesh axis uses{folding}."
        )


def _estimate_notes(search: CandidateSearch, with_context: bool) -> Iterator[str]:
    untried = [] if search.with_stages else ["Pipeline"]
    untried += [] if with_context else ["context"]
    if untried:
        verb = "is" if len(untried) == 1 else "are"
        text = " and ".join(untried).capitalize()
        yield f"{text} parallelism {verb} not tried; --pipeline and --context try them."
    yield "Between blocks, tensor axes shard the sequence. MFU is that of the bf16 peak."
    if search.is_training:
        yield "A batch is divided into as few microbatches as fit."
        yield _margin_note(search)
        return
    yield "A step is one token of every sequence, with a full cache."
    if search.hardware.network == "switch":
        yield "The launch latency of collectives is not counted: no vendor publishes it."


def _margin_note(search: CandidateSearch) -> str:
    if search.margin != 1:
        return f"Activations may take {search.margin:g} times their estimate, as requested."
    return (
        "Peak memory is that of `plan`, calibrated on XLA's buffer assignments for TPUs; "
        "--activation-margin 1.2 leaves room for activations of your own."
    )


def advice_command(
    search: CandidateSearch, ranked: Sequence[Candidate], request: AdviceRequest
) -> str:
    """Return the command that plans the best candidate, tensor by tensor."""
    if not ranked:
        return ""
    best, workload, model = ranked[0], search.workload, request.model
    if not isinstance(model, (str, Path)):
        # A Python object: the target it was loaded from, if the command line loaded it.
        model = search.model.details.get("called", search.model.name)
    hardware = request.hardware
    chip = hardware.name if isinstance(hardware, Hardware) else hardware
    arguments = [
        "shardlab",
        "plan",
        str(model),
        "--mesh",
        best.mesh_text,
        "--strategy",
        best.strategy,
    ]
    arguments += ["--hardware", str(chip), "--optimizer", search.weights.optimizer.name]
    if isinstance(request.policy, str):
        arguments += ["--policy", request.policy]
    if isinstance(request.architecture, (str, Path)):
        arguments += ["--architecture", str(request.architecture)]
    if request.headroom != _DEFAULT_HEADROOM:
        arguments += ["--headroom", f"{request.headroom:g}"]
    if workload is not None:
        arguments += ["--batch", str(workload.batch), "--sequence", str(workload.sequence)]
        arguments += ["--remat", best.remat] if search.is_training else []
        arguments += ["--cache-dtype", request.cache_dtype] if request.cache_dtype else []
        if best.n_microbatches > 1:
            arguments += ["--microbatch", str(workload.batch // best.n_microbatches)]
        arguments += _offload_arguments(workload)
    arguments += _timing_arguments(search, best)
    # Quoted for a shell: paths of models may have spaces.
    return " ".join(map(quote, arguments))


def _offload_arguments(workload: Workload | None) -> list[str]:
    if workload is None:
        return []
    arguments = ["--offload", workload.offload] if workload.offload else []
    arguments += ["--offload-optimizer"] if workload.offload_optimizer else []
    return arguments + (
        ["--loss-chunks", str(workload.loss_chunks)] if workload.loss_chunks > 1 else []
    )


def _timing_arguments(search: CandidateSearch, best: Candidate) -> list[str]:
    """Return the options with which `plan --time` gives the same time."""
    if best.step is None:
        return []
    estimator, arguments = search.estimator, ["--time"]
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == estimator.dtype)
    if search.is_training and precision != "bf16":
        arguments += ["--precision", precision]
    if estimator.framework is not None:
        arguments += ["--framework", estimator.framework.name]
    if dict(best.mesh).get("stage", 1) > 1:
        arguments += ["--schedule", str(estimator.schedule)]
    return arguments
