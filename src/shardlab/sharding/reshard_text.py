"""Moves in words: each step, what it sends, and the rule that gave the number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab._text.units import bytes_text
from shardlab.sharding.layout import Layout
from shardlab.sharding.reshard import ReshardStep

# What one device sends on a ring of g devices.
_RULES = {
    "all_gather": "(g-1)/g of the gathered piece",
    "all_to_all": "(g-1)/g of the piece it has",
    "collective_permute": "the piece it has",
}


def reshard_text(before: Layout, after: Layout, moves: Sequence[ReshardStep]) -> str:
    """Return the moves as a numbered list.

    >>> from shardlab.sharding.reshard import reshard
    >>> from shardlab.sharding.layout import layout
    >>> one, two = layout("8x16", "None,model", "model=4"), layout("8x16", "model", "model=4")
    >>> print(reshard_text(one, two, reshard(one, two)))
    From P(None, 'model') to P('model')
      1. all_to_all over model: P(None, 'model') -> P('model')
         each device sends 96 bytes: (g-1)/g of the piece it has, on a ring of g=4
    """
    return "\n".join(_lines(before, after, moves))


def _lines(before: Layout, after: Layout, moves: Sequence[ReshardStep]) -> Iterator[str]:
    yield f"From {before.spec} to {after.spec}"
    if not moves:
        yield "  nothing moves: each device already holds its slice"
    for number, move in enumerate(moves, start=1):
        names = ", ".join(move.mesh_axes)
        yield f"  {number}. {move.kind} over {names}: {move.before.spec} -> {move.after.spec}"
        yield f"     {_sends(move)}"
    if len(moves) > 1:
        total = sum(move.sent_bytes for move in moves)
        yield f"  in all, each device sends {bytes_text(total)}"


def _sends(move: ReshardStep) -> str:
    if move.kind == "slice":
        return "free: each device keeps a part of its own piece"
    rule = f"{_RULES[move.kind]}, on a ring of g={move.group_size}"
    if move.kind == "collective_permute":
        rule = f"{_RULES[move.kind]}, to one other device"
    return f"each device sends {bytes_text(move.sent_bytes)}: {rule}"
