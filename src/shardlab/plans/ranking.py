"""Ranking: candidates in order, and for each that lost the reason why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardlab.records.advice import Candidate
from shardlab.records.observation import Sizes
from shardlab.records.step import StepTime

_AS_QUICK = 1.005  # a difference that no estimate like this can tell
_ORDER = ("variant", "slower", "memory", "batch", "model")


def rank(
    candidates: Iterable[Candidate],
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the best candidate of each mesh that fits, best first, and all the others.

    By the lower bound of a step, then the upper, then the bytes on a device; without times by bytes
    alone.
    """
    fitting: dict[Sizes, list[Candidate]] = {}
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
    others.sort(key=lambda each: (_ORDER.index(each.why), *_key(each)))
    return tuple(_told(each, best) for each in ranked), tuple(others)


def _key(candidate: Candidate) -> tuple[object, ...]:
    step = candidate.step
    # Of times that agree to six digits, the order must not hang on the last bit.
    times = (0.0, 0.0) if step is None else (_six(step.lower), _six(step.upper))
    return (*times, candidate.bytes_per_device, len(candidate.mesh), candidate.mesh_text)


def _six(seconds: float) -> float:
    return float(f"{seconds:.5e}")


def _told(candidate: Candidate, best: Candidate | None) -> Candidate:
    if best is None or best.step is None or candidate.step is None:
        return candidate
    if candidate is best:
        return replace(candidate, reason=f"the best: {bound_of(candidate.step)}")
    return replace(candidate, why="slower", reason=_slower(candidate, best, best.step))


def _slower(candidate: Candidate, best: Candidate, other: StepTime) -> str:
    """Say what costs the time, against the best."""
    step = candidate.step
    assert step is not None  # it was timed: those that are not do not come here
    ratio = step.lower / other.lower
    if ratio > _AS_QUICK:
        return f"{bound_of(step)}: {_times(ratio)} slower than the best"
    ratio = step.upper / other.upper
    if ratio > _AS_QUICK:
        most = next(iter(step.by_axis()), "")
        return f"as quick as the best if what {most!r} sends hides, else {_times(ratio)} slower"
    return "as quick as the best"


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
    lower, upper = (
        getattr(candidate.step, name) / getattr(first.step, name) for name in ("lower", "upper")
    )
    if max(lower, upper) > _AS_QUICK:
        return f"{chosen} fits too, and this is {_times(max(lower, upper))} slower"
    return f"{chosen} is as quick and takes less memory"


def bound_of(step: StepTime) -> str:
    """Return what bounds a step: arithmetic, reading memory, or communication over an axis."""
    if step.communication_seconds > step.busy_seconds:
        return f"communication over {next(iter(step.by_axis()))!r} bounds it"
    if step.reading_seconds > step.compute_seconds:
        return "reading memory bounds it"
    return "compute bounds it"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.2f}x"
