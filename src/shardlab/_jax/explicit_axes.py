"""Errors of meshes with Explicit axes: what they mean, and how to go on.

`jax.make_mesh` creates Explicit axes by default. The sharding is then part of an array's
type, and JAX rejects operations whose output sharding is ambiguous.
"""

from __future__ import annotations

EXPLANATION = (
    "The mesh axes are Explicit, the default of jax.make_mesh: shardings are part of the types, "
    "and JAX rejects an operation whose operands do not fit or whose output sharding is ambiguous."
)
FIX = (
    "reshard an operand first (jax.sharding.reshard), pass out_sharding=P(...) to the operation, "
    "or let the compiler decide: jax.make_mesh(shape, names, "
    "axis_types=(jax.sharding.AxisType.Auto,) * len(names))."
)
_IN_SPECS_EXPLANATION = (
    "The mesh axes are Explicit, the default of jax.make_mesh: shardings are part of the types, "
    "and in_specs must match how the argument is already sharded."
)
_IN_SPECS_FIX = (
    "leave in_specs out, reshard the argument first (jax.sharding.reshard), or let shard_map "
    "reshard it: jax.make_mesh(shape, names, "
    "axis_types=(jax.sharding.AxisType.Auto,) * len(names))."
)
_IN_SPECS_MISMATCH = "does not match the specs of the input"
_ASSERTED_CONSTRAINT = "acts as an assert when all axes of mesh are of type `Explicit`"


def is_explicit_axes_error(error: BaseException) -> bool:
    """Return whether JAX raised `error` because of Explicit mesh axes."""
    # By name: JAX 0.10 to 0.12 export the class from a private module only.
    is_type_error = any(base.__name__ == "ShardingTypeError" for base in type(error).__mro__)
    return is_type_error or _ASSERTED_CONSTRAINT in str(error)


def explain_explicit_axes(error: BaseException) -> tuple[str, str] | None:
    """Return what an error means and how to fix it; None if Explicit axes are not the reason."""
    if isinstance(error, ValueError) and _IN_SPECS_MISMATCH in str(error):
        return _IN_SPECS_EXPLANATION, _IN_SPECS_FIX
    return (EXPLANATION, FIX) if is_explicit_axes_error(error) else None
