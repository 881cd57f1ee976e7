"""Ranks candidates, and gives each that lost its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardlab.hardware.step_time import StepTime
from shardlab.planner.advice.advice import Candidate
from shardlab.sharding.mesh import MeshSizes

_SAME_TIME = 1.005  # ratio of times that no estimate of this kind can tell apart
_LOSS_ORDER = ("variant", "slower", "memory", "batch", "model")


def rank_candidates(
    candidates: Iterable[Candidate],
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the best candidate of each mesh that fits, best first, and all the others.

    Ordered by the expected time of a step, then by its communication, then by the bytes per device;
    without times by bytes alone.
    """
    by_mesh: dict[MeshSizes, list[Candidate]] = {}
    others = []
    for candidate in candidates:
        if candidate.loss_kind:
            others.append(candidate)
        else:
            by_mesh.setdefault(candidate.mesh, []).append(candidate)
    ranked = []
    for variants in by_mesh.values():
        first, *rest = sorted(variants, key=_rank_key)
        ranked.append(first)
        # There are thousands: their reason says how much slower they are, so the time is dropped.
        others += [
            replace(
                variant,
                loss_kind="variant",
                reason=_variant_reason(variant, first),
                step=None,
                placement="",
            )
            for variant in rest
        ]
    ranked.sort(key=_rank_key)
    best = ranked[0] if ranked else None
    # Of those that do not fit, the ones that might (they are timed) come first, fastest first.
    others.sort(
        key=lambda loser: (
            _LOSS_ORDER.index(loser.loss_kind),
            loser.step is None,
            *_rank_key(loser),
        )
    )
    return tuple(_add_verdict(candidate, best) for candidate in ranked), tuple(others)


def _rank_key(candidate: Candidate) -> tuple[object, ...]:
    step = candidate.step
    times = (0.0, 0.0)
    if step is not None:
        times = (
            _round_to_six_digits(step.expected),
            _round_to_six_digits(step.communication_seconds),
        )
    return (*times, candidate.bytes_per_device, len(candidate.mesh), candidate.mesh_text)


def _round_to_six_digits(seconds: float) -> float:
    """Round, so that the order does not depend on the last bit of a floating-point sum."""
    return float(f"{seconds:.5e}")


def _add_verdict(candidate: Candidate, best: Candidate | None) -> Candidate:
    if best is None or best.step is None or candidate.step is None:
        return candidate
    if candidate is best:
        return replace(candidate, reason=bottleneck_text(candidate.step))
    reason = _slower_reason(candidate.step, best.step)
    return replace(candidate, loss_kind="slower", reason=reason)


def compare_with_best(candidate: Candidate, best: Candidate) -> Candidate:
    """Return a candidate with the reason why it is slower than the best."""
    return _add_verdict(candidate, best)


def _slower_reason(step: StepTime, best: StepTime) -> str:
    ratio = step.expected / best.expected
    if ratio > _SAME_TIME:
        return f"{_ratio_text(ratio)} slower: {_slower_cause(step, best)}"
    return "as fast as the best"


def _slower_cause(step: StepTime, best: StepTime) -> str:
    """Return the part of the time that grew most against the best."""
    # The terms of `StepTime.expected`.
    growth = {
        "bubble": step.bubble_seconds - best.bubble_seconds,
        "busy": step.busy_seconds - best.busy_seconds,
        "not overlapped": _not_overlapped_seconds(step) - _not_overlapped_seconds(best),
        "exposed": step.exposed_seconds - best.exposed_seconds,
    }
    largest = max(growth, key=lambda part: growth[part])
    if largest == "bubble":
        return "pipeline stages wait for each other"
    if largest == "exposed":
        return f"exposed communication over {_largest_axes(step.by_axis(is_overlapped=False))}"
    if largest == "not overlapped":
        return (
            f"communication over {_largest_axes(step.by_axis(is_overlapped=True))} exceeds compute"
        )
    if step.memory_bound_seconds - best.memory_bound_seconds > growth["busy"] / 2:
        return "more operations bound by memory bandwidth"
    return "more compute"


def _not_overlapped_seconds(step: StepTime) -> float:
    """Return how much longer the overlappable communication takes than what it overlaps with."""
    return max(0.0, step.overlapped_seconds - step.busy_seconds)


def _variant_reason(variant: Candidate, first: Candidate) -> str:
    """Return why another way to shard over the same mesh won."""
    differences = ", ".join(
        f"{name} {winner}"
        for name, winner, loser in (
            ("strategy", first.strategy, variant.strategy),
            ("remat", first.remat, variant.remat),
            ("microbatches", str(first.n_microbatches), str(variant.n_microbatches)),
        )
        if winner != loser
    )
    if variant.step is None or first.step is None:
        return f"{differences} takes less memory"
    ratio = variant.step.expected / first.step.expected
    if ratio > _SAME_TIME:
        return f"{differences} also fits, and this is {_ratio_text(ratio)} slower"
    return f"{differences} is as fast and takes less memory"


def bottleneck_text(step: StepTime) -> str:
    """Return what bounds a step: compute, memory bandwidth, or communication over an axis."""
    if step.exposed_seconds > max(step.busy_seconds, step.overlapped_seconds):
        axes = _largest_axes(step.by_axis(is_overlapped=False))
        return f"bound by exposed communication over {axes}"
    if step.overlapped_seconds > step.busy_seconds:
        return f"bound by communication over {_largest_axes(step.by_axis(is_overlapped=True))}"
    if step.memory_bound_seconds > step.busy_seconds / 2:
        return "bound by memory bandwidth"
    return "bound by compute"


def _largest_axes(seconds_by_axes: Mapping[str, float]) -> str:
    """Return the mesh axes with most communication; `by_axis` has them first."""
    return axes_label(next(iter(seconds_by_axes), ""))


def axes_label(axes: str) -> str:
    """Return the mesh axes of a collective for readers: `data+fsdp`."""
    return axes.replace(",", "+")


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.2f}x"
