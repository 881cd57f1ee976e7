"""All collectives by the names of their primitives, and the properties of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardlab.simulator.interpreter.rules.gather_scatter import GATHER_SCATTERS
from shardlab.simulator.interpreter.rules.permutations import PERMUTATIONS
from shardlab.simulator.interpreter.rules.reductions import REDUCTIONS, mesh_axis_names
from shardlab.simulator.interpreter.stacked_array import StackedArray

# The primitives ending in _invariant, unreduced_ or _reduced are what JAX traces the public
# functions to under check_vma=True or for Explicit axes; the arithmetic is the same.
COLLECTIVES: dict[str, Callable[..., StackedArray]] = {
    **REDUCTIONS,
    **GATHER_SCATTERS,
    **PERMUTATIONS,
}
# Asynchronous pairs: the start does all the work, the matching _done below passes the value on.
COLLECTIVES |= {f"{name}_start": rule for name, rule in list(COLLECTIVES.items())}

# Sums: a product that feeds one of these can be summed within the contraction (`partial_sums`).
SUM_COLLECTIVES = frozenset({"psum", "psum_invariant", "unreduced_psum"})

# Casts between VMA types, and placements: the values stay as they are. The cast primitives have
# a suffix _p in some JAX versions.
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

# Of these, the ones that say how a global array is sharded.
PLACEMENTS = frozenset({"reshard", "sharding_constraint", "device_put"})

# Over the mesh axes they communicate on, these leave every device with the same value.
REPLICATING_COLLECTIVES = frozenset(
    {*REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "pbroadcast"}
)


def collective_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """Return the mesh axes over which an equation with these parameters communicates."""
    # Reductions have a parameter `axes`, all other collectives have `axis_name`.
    return mesh_axis_names(params["axes"] if "axes" in params else params["axis_name"])
