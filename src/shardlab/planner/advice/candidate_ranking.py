"""Ranks candidates, and gives each that lost its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shardlab.hardware.step_time import StepTime
from shardlab.planner.advice.advice import Candidate
from shardlab.planner.advice.mesh_conventions import MeshConventions
from shardlab.sharding.mesh import MeshSizes

_SAME_TIME = 1.005  # ratio of times that no estimate of this kind can tell apart
_LOSS_ORDER = ("variant", "slower", "memory", "batch", "model")


def rank_candidates(
    candidates: Iterable[Candidate], conventions: MeshConventions | None = None
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the best candidate of each mesh that fits, best first, and all the others.

    Ordered by the expected time of a step, then by its communication, then by the bytes per device;
    without times by bytes alone. With conventions, the times of unusual meshes count as longer,
    and kinds of software alternate.
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
        first, *rest = sorted(variants, key=lambda variant: _variant_key(variant, conventions))
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
    ranked.sort(key=lambda candidate: _mesh_key(candidate, conventions))
    if conventions is not None:
        ranked = _alternate_software(ranked)
    # Of those that do not fit, the ones that might (they are timed) come first, fastest first.
    others.sort(
        key=lambda loser: (
            _LOSS_ORDER.index(loser.loss_kind),
            loser.step is None,
            *_rank_key(loser),
        )
    )
    return tuple(_add_verdicts(ranked, conventions)), tuple(others)


def _alternate_software(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the best mesh of each kind of software, then the second best of each, ...

    Which software will run is unknown unless the user names it, and programs differ by more than
    meshes do: without this, meshes that only slower programs use would all come last.
    """
    by_software: dict[str, list[Candidate]] = {}
    for candidate in ranked:  # best first, so the best software comes first too
        by_software.setdefault(candidate.framework, []).append(candidate)
    rows = [
        (position, index, candidate)
        for index, group in enumerate(by_software.values())
        for position, candidate in enumerate(group)
    ]
    return [candidate for _, _, candidate in sorted(rows, key=lambda row: row[:2])]


def _variant_key(candidate: Candidate, conventions: MeshConventions | None) -> tuple[object, ...]:
    """Return the sorting key of the ways to use one mesh."""
    is_accumulated = conventions is not None and conventions.avoids_accumulation(candidate.mesh)
    return (candidate.n_microbatches if is_accumulated else 0, *_rank_key(candidate))


def _mesh_key(candidate: Candidate, conventions: MeshConventions | None) -> tuple[object, ...]:
    """Return the sorting key of a mesh: its time, longer by what is unusual about it."""
    penalty = 1.0 if conventions is None else conventions.penalty(candidate.mesh)
    seconds = 0.0 if candidate.step is None else candidate.step.expected
    return (_round_to_six_digits(seconds * penalty), *_rank_key(candidate))


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


def _add_verdicts(
    ranked: Sequence[Candidate], conventions: MeshConventions | None
) -> Iterator[Candidate]:
    for candidate in ranked:
        if candidate is ranked[0] and candidate.step is not None:
            yield replace(candidate, reason=_best_reason(candidate.step, ranked))
        else:
            yield compare_with_best(candidate, ranked[0], conventions)


def _best_reason(step: StepTime, ranked: Sequence[Candidate]) -> str:
    """Return what bounds the best; and if another is faster, that the difference means nothing."""
    reason = bottleneck_text(step)
    fastest = min(ranked, key=_rank_key)
    if fastest.step is None or step.expected <= fastest.step.expected * _SAME_TIME:
        return reason
    percent = _percent_text(step.expected / fastest.step.expected)
    return f"{reason}; {fastest.mesh_text} is {percent} faster by estimate, but less usual"


def compare_with_best(
    candidate: Candidate, best: Candidate, conventions: MeshConventions | None = None
) -> Candidate:
    """Return a candidate with the reason why it is not the best."""
    if best.step is None or candidate.step is None:
        return candidate
    return replace(
        candidate, loss_kind="slower", reason=_slower_reason(candidate, best, conventions)
    )


def _slower_reason(
    candidate: Candidate, best: Candidate, conventions: MeshConventions | None
) -> str:
    assert candidate.step is not None
    assert best.step is not None
    ratio = candidate.step.expected / best.step.expected
    software = ""
    if candidate.framework != best.framework:
        software = f" with {candidate.framework} instead of {best.framework}"
    if ratio > _SAME_TIME:
        cause = _slower_cause(candidate.step, best.step)
        return f"{_ratio_text(ratio)} slower{software}: {cause}"
    objections = () if conventions is None else conventions.objections(candidate.mesh)
    unusual = f", but {', '.join(objections)}" if objections else ""
    if ratio < 1 / _SAME_TIME:
        return f"{_percent_text(1 / ratio)} faster by estimate{unusual or ', with more mesh axes'}"
    return f"as fast as the best{software}{unusual}"


def _percent_text(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f} %"


def _slower_cause(step: StepTime, best: StepTime) -> str:
    """Return the part of the time that grew most against the best."""
    # The terms of `StepTime.expected`.
    growth = {
        "bubble": step.bubble_seconds - best.bubble_seconds,
        "busy": step.busy_seconds - best.busy_seconds,
        "not overlapped": _not_overlapped_seconds(step) - _not_overlapped_seconds(best),
        "slowed": step.slowed_seconds - best.slowed_seconds,
        "exposed": step.exposed_seconds - best.exposed_seconds,
    }
    largest = max(growth, key=lambda part: growth[part])
    if largest == "bubble":
        return "pipeline stages wait for each other"
    if largest == "exposed":
        return f"exposed communication over {_largest_axes(step.by_axis(is_overlapped=False))}"
    if largest == "slowed":
        axes = _largest_axes(step.by_axis(is_overlapped=True))
        return f"overlapped communication over {axes} slows compute"
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
    if ratio < 1 / _SAME_TIME:
        return (
            f"{differences} needs fewer microbatches; this is {_percent_text(1 / ratio)} faster "
            "by estimate"
        )
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
