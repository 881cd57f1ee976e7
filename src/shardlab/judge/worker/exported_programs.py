"""The bytes of a program from a process that nobody trusts: read, and refused where they are odd.

Nothing is compiled before this. What passes is what `jax.export` makes of arrays and mesh axes: no
calls out of XLA but those that compute, one platform, the shapes and devices that were asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from shardlab._jax.exported_program import ProgramContents, read_contents

_MOST_BYTES = 4 << 20
_MOST_OPERATIONS = 100_000
_MOST_CONSTANTS = 1 << 20  # elements of one constant
_MOST_OUTPUTS = 1 << 20  # elements of all outputs
_DIALECTS = ("func", "stablehlo", "sdy")
_TO_THE_HOST = {f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv")}
# Calls that XLA itself makes something else of. None into a library: LAPACK takes any shapes that
# it is told for true, and writes beyond a buffer.
_CALLS = re.compile(r"Sharding|SPMDFullToShardShape|SPMDShardToFullShape|ApproxTopK")


class InvalidProgram(Exception):
    """Bytes that are no program, or one that was not asked for."""


def read_program(
    data: bytes, arrays: Sequence[tuple[Sequence[int], str]], n_devices: int
) -> tuple[jax.export.Exported, ProgramContents]:
    """Return a program of these arrays for so many devices, or for one; and what stands in it."""
    if len(data) > _MOST_BYTES:
        raise InvalidProgram(f"the program has {len(data):,} bytes; {_MOST_BYTES:,} are the most")
    try:
        exported = jax.export.deserialize(bytearray(data))
        found = read_contents(exported)
    except Exception as error:
        raise InvalidProgram(
            f"the bytes are no exported program ({type(error).__name__})"
        ) from None
    for wrong in (_outside(exported, arrays, n_devices), _inside(found)):
        if wrong:
            raise InvalidProgram(wrong)
    return exported, found


def _outside(exported: Any, arrays: Sequence[tuple[Sequence[int], str]], n_devices: int) -> str:
    """Say what is wrong with what a program takes, gives and needs."""
    if tuple(exported.platforms) != ("cpu",):
        return f"the program is for {', '.join(exported.platforms)[:80]}, not for cpu"
    if exported.nr_devices not in (1, n_devices):
        return f"the program is for {exported.nr_devices} devices, and the mesh has {n_devices}"
    if exported.ordered_effects or exported.unordered_effects:
        return "the program has effects beside its results"
    asked = [(tuple(shape), str(jax.dtypes.canonicalize_dtype(dtype))) for shape, dtype in arrays]
    given = [(tuple(aval.shape), str(aval.dtype)) for aval in exported.in_avals]
    if given != asked:
        return f"the program takes {given!r:.200}, and was asked to take {asked!r:.200}"
    if not all(type(n) is int for aval in exported.out_avals for n in aval.shape):
        return "the program gives arrays of no fixed shape"
    if sum(math.prod(aval.shape) for aval in exported.out_avals) > _MOST_OUTPUTS:
        return f"the program gives more than {_MOST_OUTPUTS:,} numbers"
    return ""


def _inside(found: ProgramContents) -> str:
    """Say what is wrong with the operations of a program."""
    others = sorted(
        name
        for name in found.operations
        if name.partition(".")[0] not in _DIALECTS or name in _TO_THE_HOST
    )
    if others:
        return f"the program has the operation {', '.join(others)[:80]}, which is not allowed here"
    calls = sorted(name for name in found.custom_calls if not _CALLS.fullmatch(name))
    if calls:
        return f"the program calls {', '.join(calls)[:200]}, which is not allowed here"
    if found.largest_constant > _MOST_CONSTANTS:
        return f"the program holds a constant of {found.largest_constant:,} numbers"
    if found.n_operations > _MOST_OPERATIONS:
        return f"the program has {found.n_operations:,} operations"
    return ""
