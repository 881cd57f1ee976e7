"""Growth: how many more chips would be enough, where a model fits on none of the meshes.

Multiples of the chips are searched for real, the smallest first, by memory alone: with the ZeRO
stage, the remat policy and the microbatches that take least.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.errors import TooManyDevices
from shardlab.layouts.mesh import MAX_DEVICES
from shardlab.plans.advice.candidates import Search
from shardlab.plans.advice.ranking import rank
from shardlab.records.advice import Candidate

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
