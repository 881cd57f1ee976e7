"""Ranking: candidates in order, and for each that lost the reason why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardlab.hardware.step_time import StepTime
from shardlab.planner.advice.advice import Candidate
from shardlab.sharding.mesh import MeshSizes

_AS_QUICK = 1.005  # a difference that no estimate like this can tell
_ORDER = ("variant", "slower", "memory", "batch", "model")


def rank(
    candidates: Iterable[Candidate],
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the best candidate of each mesh that fits, best first, and all the others.

    By the time that a step is expected to take, then by its upper bound, then by the bytes on a
    device; without times by bytes alone.
    """
    fitting: dict[MeshSizes, list[Candidate]] = {}
    others = []
    for each in candidates:
        if each.why:
            others.append(each)
        else:
            fitting.setdefault(each.mesh, []).append(each)
    ranked = []
    for alike in fitting.values():
        first, *rest = sorted(alike, key=_key)
        ranked.append(first)
        # thousands of them: their reason says how much slower they are, so no time is kept
        others += [
            replace(each, why="variant", reason=_variant(each, first), step=None, laid="")
            for each in rest
        ]
    ranked.sort(key=_key)
    best = ranked[0] if ranked else None
    # of those that do not fit, first those that might, the quickest of them first
    others.sort(key=lambda each: (_ORDER.index(each.why), each.step is None, *_key(each)))
    return tuple(_told(each, best) for each in ranked), tuple(others)


def _key(candidate: Candidate) -> tuple[object, ...]:
    step = candidate.step
    # Of times that agree to six digits, the order must not hang on the last bit.
    times = (0.0, 0.0) if step is None else (_six(step.expected), _six(step.upper))
    return (*times, candidate.bytes_per_device, len(candidate.mesh), candidate.mesh_text)


def _six(seconds: float) -> float:
    return float(f"{seconds:.5e}")


def _told(candidate: Candidate, best: Candidate | None) -> Candidate:
    if best is None or best.step is None or candidate.step is None:
        return candidate
    if candidate is best:
        return replace(candidate, reason=bound_of(candidate.step))
    return replace(candidate, why="slower", reason=_slower(candidate.step, best.step))


def _slower(step: StepTime, best: StepTime) -> str:
    """Say what costs the time, against the best."""
    ratio = step.expected / best.expected
    if ratio > _AS_QUICK:
        return f"{_times(ratio)} slower: {_cause(step, best)}"
    ratio = step.upper / best.upper
    if ratio > _AS_QUICK:
        hides = step.by_axis(hides=True) or step.by_axis()
        most = _names(next(iter(hides), ""))
        return f"as quick if traffic over {most} hides, else {_times(ratio)} slower"
    return "as quick as the best"


def _cause(step: StepTime, best: StepTime) -> str:
    """Return which part of the time is longer than that of the best, where it is the most."""
    more = {
        "work": step.busy_seconds - best.busy_seconds,
        "late": _late(step) - _late(best),
        "waits": step.exposed_seconds - best.exposed_seconds,
    }
    most = max(more, key=lambda name: more[name])
    if most == "waits":
        return f"waits for traffic over {_names(next(iter(step.by_axis(hides=False))))}"
    if most == "late":
        return f"traffic over {_names(next(iter(step.by_axis(hides=True))))} outlasts compute"
    if step.reading_seconds > step.compute_seconds:
        return "reads more"
    return "computes more"


def _late(step: StepTime) -> float:
    """Return how much longer what could hide takes than what it hides behind."""
    return max(0.0, step.hidden_seconds - step.busy_seconds)


def _variant(candidate: Candidate, first: Candidate) -> str:
    """Say why another way to cut the same mesh was taken."""
    chosen = ", ".join(
        f"{word} {new}"
        for word, new, old in (
            ("strategy", first.strategy, candidate.strategy),
            ("remat", first.remat, candidate.remat),
            ("microbatches", str(first.n_microbatches), str(candidate.n_microbatches)),
        )
        if new != old
    )
    if candidate.step is None or first.step is None:
        return f"{chosen} takes less memory"
    ratio = candidate.step.expected / first.step.expected
    if ratio <= _AS_QUICK:
        ratio = candidate.step.upper / first.step.upper
    if ratio > _AS_QUICK:
        return f"{chosen} fits too, and this is {_times(ratio)} slower"
    return f"{chosen} is as quick and takes less memory"


def bound_of(step: StepTime) -> str:
    """Return what takes most of a step: arithmetic, reading memory, or traffic over an axis."""
    if step.exposed_seconds > max(step.busy_seconds, step.hidden_seconds):
        return f"waiting for traffic over {_names(next(iter(step.by_axis(hides=False))))} bounds it"
    if step.hidden_seconds > step.busy_seconds:
        return f"traffic over {_names(next(iter(step.by_axis(hides=True))))} bounds it"
    if step.reading_seconds > step.compute_seconds:
        return "reading memory bounds it"
    return "compute bounds it"


def _names(axes: str) -> str:
    return axes.replace(",", "+")


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.2f}x"
