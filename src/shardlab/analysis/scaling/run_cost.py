"""What it would take to run a program on a mesh: the values that the simulator computes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from shardlab import _jax
from shardlab._text.units import amount_text, bytes_text
from shardlab.tracing.jaxpr_flops import count_jaxpr_flops
from shardlab.tracing.jaxpr_walk import Site, walk_jaxpr

# More than this in one value takes most of a laptop's memory, more than this in total its patience.
_MAX_VALUE_BYTES = 2**30
_MAX_TOTAL_BYTES = 100 * 2**30
MAX_FLOPS = 1e12
# On a small mesh a program runs several times: with other roundings, on one device, in float32.
MAX_SCALED_FLOPS = 20e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCost:
    """Bytes of the largest value of a simulated run and of all that it computes, and its FLOPs."""

    largest_bytes: int
    total_bytes: int
    flops: float

    def reason_too_large(self, max_flops: float = MAX_FLOPS) -> str:
        """Return why the program is not run at this cost; '' if it can be."""
        if self.flops > max_flops:
            return (
                f"one run computes up to {amount_text(self.flops, 'FLOP')} (limit "
                f"{amount_text(max_flops, 'FLOP')})"
            )
        if self.largest_bytes > _MAX_VALUE_BYTES:
            return (
                f"one value takes {bytes_text(self.largest_bytes)} on all devices (limit "
                f"{bytes_text(_MAX_VALUE_BYTES)})"
            )
        if self.total_bytes > _MAX_TOTAL_BYTES:
            return (
                f"it computes {bytes_text(self.total_bytes)} of values (limit "
                f"{bytes_text(_MAX_TOTAL_BYTES)})"
            )
        return ""


def estimate_run_cost(closed: Any, n_devices: int) -> RunCost:
    """Return an upper bound of what a simulated run computes; loops of unknown length count once.

    A value is stored once for each device along the mesh axes over which it varies, so one that is
    the same on all devices costs as much on 8 devices as on 65,536.
    """
    largest = total = 0
    with _jax.no_mesh():
        live = _jax.without_dead_code(closed)
        flops = count_jaxpr_flops(live)
        for site in walk_jaxpr(live):
            n_bytes = _output_bytes(site)
            largest = max(largest, *n_bytes, 0)
            total += sum(n_bytes) * (site.context.count or 1)
    return RunCost(
        largest_bytes=largest,
        total_bytes=total,
        flops=flops.outside + (flops.total - flops.outside) * n_devices,
    )


def _output_bytes(site: Site) -> list[int]:
    sizes = site.context.axes.sizes
    return [
        _local_bytes(var.aval) * math.prod(sizes.get(name, 1) for name in axes)
        for var, axes in zip(site.eqn.outvars, site.outs, strict=True)
    ]


def _local_bytes(aval: Any) -> int:
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return 0
    n_elements: int = math.prod(aval.shape)
    return n_elements * int(getattr(dtype, "itemsize", 4))
