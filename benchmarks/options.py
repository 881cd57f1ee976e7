"""How much to measure: device counts, rounds and limits. Sizes are not among them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    devices: tuple[int, ...] = (8, 64, 256, 1024)
    rounds: int = 9
    # Fresh processes per contender, where only a first call counts.
    fresh: int = 3
    # The longest a contender may take over one answer: its start, its first calls, or one turn.
    limit_s: float = 180.0


QUICK = Options(devices=(8, 64), rounds=3, fresh=1, limit_s=60.0)
