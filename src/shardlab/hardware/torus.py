"""The time of one collective on a torus of chips, each with two links along every torus axis.

>>> ring, line = Side(16, is_ring=True), Side(4, is_ring=False)
>>> round(torus_time("all_gather", 2_000_000, [ring], link=4.5e10, hop=1e-6).seconds * 1e6)
356
>>> torus_time("all_gather", 2_000_000, [line], link=4.5e10, hop=1e-6).formula
'line: (X-1)/X V / link'

V is the gathered (or unreduced) array of one group in bytes, p the operand on one device, X the
size of a mesh axis, `link` the bandwidth of one link in one direction. Formulas: JAX scaling book,
sharding.md; the all-to-all on a line and permutations are counted link by link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from shardlab.collectives.wire import REDUCTIONS
from shardlab.hardware.timing import Timing, gathered_bytes

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Side:
    """A mesh axis on the torus: its size, and whether wraparound links close it to a ring."""

    size: int
    is_ring: bool

    @property
    def hops(self) -> int:
        """The number of hops to the farthest device."""
        return ceil(self.size / 2) if self.is_ring else self.size - 1

    @property
    def ingress_links(self) -> int:
        """The links into the chip that has fewest: two on a ring, one at the end of a line."""
        return 2 if self.is_ring else 1

    @property
    def shape(self) -> str:
        return "ring" if self.is_ring else "line"


def torus_time(
    op: str,
    payload_bytes: int,
    sides: Sequence[Side],
    *,
    link: float,
    hop: float,
    torus_axes: int = 3,
    pairs: Pairs | None = None,
) -> Timing:
    """Return the time of one call over these mesh axes, with its formula."""
    if op == "ppermute":
        return _time_permute(payload_bytes, sides, link, hop, pairs)
    latency = hop * sum(side.hops for side in sides)
    if op == "pbroadcast":
        seconds = payload_bytes / link + latency
        return Timing(seconds, "pipelined: p / link + hop x hops", "ICI")
    if op == "all_to_all":
        return _time_all_to_all(payload_bytes, sides, link, latency)
    return _time_gather(op, payload_bytes, sides, link, latency, torus_axes)


def die_time(op: str, payload_bytes: int, group_size: int, in_chip: int, die: float) -> Timing:
    """Return the time between the devices of one chip, `in_chip` of which are in the group.

    A chip sends and receives each byte over its links once; its devices exchange their parts.

    >>> die_time("all_gather", 1_000_000, 8, 2, 5e11).formula
    'in a chip: V / 2 / die'
    """
    share = (in_chip - 1) / in_chip
    if op in ("ppermute", "pbroadcast"):
        return Timing(payload_bytes / die, "in a chip: p / die", "in a chip")
    times, twice = (2, "2 x ") if op in REDUCTIONS else (1, "")
    seconds = times * gathered_bytes(op, payload_bytes, group_size) * share / die
    part = "V / 2" if in_chip == 2 else f"V x {share:.2g}"
    return Timing(seconds, f"in a chip: {twice}{part} / die", "in a chip")


def _time_gather(
    op: str, payload: int, sides: Sequence[Side], link: float, latency: float, torus_axes: int
) -> Timing:
    """Time an all-gather, a reduce-scatter, or an all-reduce, which is both in sequence."""
    group_size = prod(side.size for side in sides)
    n_bytes: float = gathered_bytes(op, payload, group_size)
    # Several mesh axes on one torus axis share its links: count at most `torus_axes` of them.
    used = sorted(sides, key=lambda side: -side.ingress_links)[:torus_axes]
    if not all(side.is_ring for side in used):
        # The chip at the corner of the lines receives everything but its own shard, over one link
        # per line: no algorithm is faster. Rings have the book's V, without (X-1)/X.
        n_bytes *= (group_size - 1) / group_size
    bandwidth = n_bytes / (link * sum(side.ingress_links for side in used))
    times = 2 if op in REDUCTIONS else 1
    twice = "2 x " if times == 2 else ""
    # Small arrays are bound by the hops to the farthest device (scaling book, sharding.md).
    if latency > bandwidth:
        hops = "X/2" if all(side.is_ring for side in sides) else "(X-1)"
        over = f"sum of {hops}" if len(sides) > 1 else hops
        return Timing(times * latency, f"latency: {twice}hop {over}", "ICI")
    return Timing(times * bandwidth, _gather_formula(used, twice), "ICI")


def _gather_formula(used: Sequence[Side], twice: str) -> str:
    if len(used) == 1:
        rate = "V / (2 link)" if used[0].is_ring else "(X-1)/X V / link"
        return f"{used[0].shape}: {twice}{rate}"
    if all(side.is_ring for side in used):
        return f"{len(used)} rings: {twice}V / (2 link x {len(used)})"
    shapes = " and ".join(side.shape for side in used)
    return f"{shapes}: {twice}(X-1)/X V / (link x sum of 2 for a ring, 1 for a line)"


def _time_all_to_all(payload: int, sides: Sequence[Side], link: float, latency: float) -> Timing:
    """Time an all-to-all by its bottleneck, the links in the middle of the longest side."""
    # Half of the data of each half crosses the middle: V / 4, over two links of a ring or one.
    slowest = max(sides, key=lambda side: side.size / (2 if side.is_ring else 1))
    n_links = 2 if slowest.is_ring else 1
    bandwidth = payload * slowest.size / (4 * n_links * link)
    if latency > bandwidth:
        return Timing(latency, "latency: hop x hops", "ICI")
    rate = "V / (4 x 2 link)" if slowest.is_ring else "V / (4 link)"
    side = f", V = p x {slowest.size} along the longest axis" if len(sides) > 1 else ""
    return Timing(bandwidth, f"{slowest.shape}, all-to-all: {rate}{side}", "ICI")


def _time_permute(
    payload: int, sides: Sequence[Side], link: float, hop: float, pairs: Pairs | None
) -> Timing:
    if pairs is None:
        return Timing(payload / link + hop, "neighbor: p / link + hop", "ICI")
    # Dimension-ordered routing; the link with most messages on it limits the permutation.
    loads: dict[object, int] = {}
    farthest = 0
    for sender, receiver in pairs:
        route = list(_shortest_route(sender, receiver, sides))
        farthest = max(farthest, len(route))
        for hop_link in route:
            loads[hop_link] = loads.get(hop_link, 0) + 1
    busiest = max(loads.values(), default=0)
    formula = "neighbor: p / link + hop"
    if busiest > 1 or farthest > 1:
        formula = f"{busiest} p / link + {farthest} hop (the busiest link, the longest route)"
    return Timing(busiest * payload / link + farthest * hop, formula, "ICI")


def _shortest_route(sender: int, receiver: int, sides: Sequence[Side]) -> Iterator[object]:
    """Yield the links of the shortest route, one axis after the other."""
    here, there = _torus_coordinate(sender, sides), _torus_coordinate(receiver, sides)
    for axis, side in enumerate(sides):
        ahead = (there[axis] - here[axis]) % side.size
        back = side.size - ahead
        step = 1 if (ahead <= back if side.is_ring else there[axis] > here[axis]) else -1
        while here[axis] != there[axis]:
            yield axis, tuple(here), step
            here[axis] = (here[axis] + step) % side.size


def _torus_coordinate(device: int, sides: Sequence[Side]) -> list[int]:
    coordinate = []
    for side in reversed(sides):
        device, step = divmod(device, side.size)
        coordinate.append(step)
    return coordinate[::-1]
