"""The collectives by the names of their primitives, and what each kind promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardlab.simulator.interpreter.rules.gather_scatter import EXCHANGES
from shardlab.simulator.interpreter.rules.permutations import PERMUTATIONS
from shardlab.simulator.interpreter.rules.reductions import REDUCTIONS, names_in
from shardlab.simulator.interpreter.stacked_array import StackedArray

COLLECTIVES: dict[str, Callable[..., StackedArray]] = {**REDUCTIONS, **EXCHANGES, **PERMUTATIONS}
# Asynchronous pairs: all the work happens at the start, the end hands the value on.
COLLECTIVES |= {f"{name}_start": rule for name, rule in list(COLLECTIVES.items())}

# Sums: a product that feeds one of these can be summed within the contraction.
SUM_COLLECTIVES = frozenset({"psum", "psum_invariant", "unreduced_psum"})

# Casts between varying-axes types, and placements: the numbers stay as they are.
IDENTITY_COLLECTIVES = frozenset(
    {
        "pvary",
        "pcast",
        "preduced",
        "vary_unreduced_cast",
        "vary_unreduced_cast_p",
        "reduced_vary_cast",
        "reduced_vary_cast_p",
        "reshard",
        "mesh_cast",
        "layout_constraint",
        "device_put",
        "sharding_constraint",
        *(f"{name.removesuffix('_start')}_done" for name in COLLECTIVES),
    }
)

# Over the axes they communicate on, these leave every device with the same value.
MAKE_EQUAL = frozenset(
    {*REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "pbroadcast"}
)


def collective_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """Return the mesh axes over which an equation with these parameters communicates."""
    return names_in(params["axes"] if "axes" in params else params["axis_name"])
