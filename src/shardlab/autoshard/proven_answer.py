"""Offers the best answer that is not disproven: each is proven in turn until one is left standing.

A disproven answer is wrong in a way that the search cannot see: XLA sends what Shardy's passes do
not, or the program returns other values on the mesh. The next best one is proven then, and the
answer says what was discarded. A proof that cannot be made disproves nothing: such an answer is
offered, and says that it is not proven and why.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from shardlab._text.units import count_text
from shardlab.autoshard.answer import Autosharding, ConstraintSpec, DiscardedAnswer
from shardlab.autoshard.proof.proof_record import Proof, not_proven
from shardlab.autoshard.proof.prove import prove_answer
from shardlab.errors import ShardingsDisproven
from shardlab.sharding.mesh import parse_mesh
from shardlab.sharding.spec import Spec

MAX_PROVEN_ANSWERS = 4
DEFAULT_PROOF_LIMIT = 120.0  # seconds, of all proofs of a search
# Of the time that is left, for XLA's compiler: a program that it does not compile in time can still
# be run on a small mesh.
_COMPILE_SHARE = 0.5


def offer_proven(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    answers: Iterable[Autosharding],
    *,
    limit_s: float,
    report_step: Callable[[str], None],
) -> Autosharding:
    """Return the first of `answers`, best first, that no proof disproves, with its proof.

    Raises `ShardingsDisproven` if the first `MAX_PROVEN_ANSWERS` are all disproven.
    """
    deadline = time.monotonic() + limit_s
    discarded: list[DiscardedAnswer] = []
    for answer in islice(_distinct(answers), MAX_PROVEN_ANSWERS):
        remaining = max(deadline - time.monotonic(), 0.0)
        if not remaining:
            reason = f"the {limit_s:g} s for proofs were over."
            proof = not_proven(answer.program, tuple(parse_mesh(answer.mesh).shape.items()), reason)
        else:
            try:
                proof = prove_answer(
                    f,
                    args,
                    answer,
                    compile_limit_s=round(remaining * _COMPILE_SHARE, 1),
                    run_limit_s=round(remaining * (1 - _COMPILE_SHARE), 1),
                    on_progress=report_step,
                )
            except KeyboardInterrupt:
                search = dataclasses.replace(answer.search, is_interrupted=True)
                return dataclasses.replace(answer, search=search, discarded=tuple(discarded))
        if proof.verdict != "disproven":
            return dataclasses.replace(answer, proof=proof, discarded=tuple(discarded))
        discarded.append(_discarded(answer, proof))
        report_step(f"discarded {count_text(len(discarded), 'answer')}, proving the next one")
    raise _all_disproven(getattr(f, "__name__", "the program"), discarded)


def _distinct(answers: Iterable[Autosharding]) -> Iterator[Autosharding]:
    """Drop answers with the same shardings: two candidates may become one when simplified."""
    seen: set[tuple[str, tuple[Spec, ...], tuple[ConstraintSpec, ...]]] = set()
    for answer in answers:
        key = answer.mesh, answer.specs, answer.constraints
        if key not in seen:
            seen.add(key)
            yield answer


def _discarded(answer: Autosharding, proof: Proof) -> DiscardedAnswer:
    return DiscardedAnswer(
        mesh=answer.mesh,
        specs=answer.specs,
        constraints=answer.constraints,
        seconds=answer.cost.seconds,
        memory_bytes=answer.cost.memory_bytes,
        reason=proof.disproof,
    )


def _all_disproven(program: str, discarded: list[DiscardedAnswer]) -> ShardingsDisproven:
    best = "the best one" if len(discarded) == 1 else f"each of the best {len(discarded)}"
    lines = [f"{item.mesh}: {item.reason}" for item in discarded]
    return ShardingsDisproven(
        "\n         ".join(
            [f"No sharding of '{program}' is offered: {best} failed a proof.", *lines]
        ),
        where=f"the proofs of '{program}'",
        fix="shardlab check, if values differ: a part of the program depends on the mesh. If only "
        "collectives differ, --no-proof (prove=False) shows the answer; it is slower than it says.",
    )
