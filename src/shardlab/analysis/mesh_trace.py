"""A program traced on the devices of one mesh, and whether it computes the same on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.analysis.run_arguments import is_array
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.retarget import retarget_programs
from shardlab.tracing.stage import drop_non_arrays, parse_shape_argument, staging_mesh


def trace_on_mesh(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any, mesh: Mesh
) -> tuple[Any, Any]:
    """Return the jaxpr and the output shapes of a program, on exactly the devices of a mesh.

    `leaves` and `tree` are its flattened arguments. A program that creates its own mesh may need
    more devices than there are; it gets them, and the mesh that it creates is replaced.
    """
    # Only arrays are traced; numbers, strings and meshes reach the function as they are.
    indices = [
        index
        for index, leaf in enumerate(leaves)
        if is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    ]

    def trace_program(n_devices: int | None) -> tuple[Any, Any]:
        def call_with_arrays(*arrays: Any) -> Any:
            new_leaves = list(leaves)
            for index, array in zip(indices, arrays, strict=True):
                new_leaves[index] = array
            new_args = jax.tree.unflatten(tree, new_leaves)
            positional, keywords = staging_mesh(f, new_args, target)
            return drop_non_arrays(f(*positional, **keywords))

        with retarget_programs(mesh, n_devices=n_devices) as target:
            arrays = [leaves[index] for index in indices]
            jaxpr, shapes = jax.make_jaxpr(call_with_arrays, return_shape=True)(*arrays)
        return jaxpr, shapes

    try:
        return trace_program(mesh.n_devices)
    except Exception:
        return trace_program(None)


def depends_on_mesh(f: Callable[..., Any], args: Sequence[Any], mesh: Mesh) -> bool:
    """Return whether a program computes something else on `mesh` than on one device.

    That is so if the number of devices, or the size of a mesh axis, is a number in the program. How
    its arrays are sharded does not count: XLA keeps the values of a jit. No values are computed.
    """
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=lambda leaf: isinstance(leaf, str))
    shapes = [_shape_only(parse_shape_argument(leaf)) for leaf in leaves]
    one_device = Mesh([(name, 1) for name in mesh.axis_names])
    try:
        (on_one, _), (on_many, _) = (
            trace_on_mesh(f, shapes, tree, sizes) for sizes in (one_device, mesh)
        )
    except Exception:
        return False  # A program that runs on one of them only cannot be compared either.
    return not computes_the_same(on_one, on_many)


def _shape_only(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf


def computes_the_same(first: Any, second: Any) -> bool:
    """Return whether two jaxprs have the same operations on the same operands.

    Shardings and meshes may differ, and parameters that are no plain values are not compared.
    """
    (a, a_consts), (b, b_consts) = _jax.open_jaxpr(first), _jax.open_jaxpr(second)
    if len(a.eqns) != len(b.eqns) or not _same_values(a_consts, b_consts):
        return False
    # Variables have no names of their own: those at the same place are the same.
    paired = dict(zip((*a.constvars, *a.invars), (*b.constvars, *b.invars), strict=False))
    for x, y in zip(a.eqns, b.eqns, strict=True):
        if x.primitive.name != y.primitive.name or not _same_params(x.params, y.params):
            return False
        if not _same_operands(x.invars, y.invars, paired):
            return False
        if [_type_of(var) for var in x.outvars] != [_type_of(var) for var in y.outvars]:
            return False
        paired |= dict(zip(x.outvars, y.outvars, strict=True))
    return _same_operands(a.outvars, b.outvars, paired)


def _same_operands(xs: Sequence[Any], ys: Sequence[Any], paired: dict[Any, Any]) -> bool:
    if len(xs) != len(ys):
        return False
    for x, y in zip(xs, ys, strict=True):
        if isinstance(x, _jax.Literal) != isinstance(y, _jax.Literal):
            return False
        if isinstance(x, _jax.Literal):
            if not _same_values([x.val], [y.val]):
                return False
        elif paired.get(x) is not y:
            return False
    return True


def _same_params(first: dict[str, Any], second: dict[str, Any]) -> bool:
    # Compared as text: NaN, as the fill value of a gather, differs from itself.
    jaxprs = list(_jax.inner_jaxprs(first)), list(_jax.inner_jaxprs(second))
    if len(jaxprs[0]) != len(jaxprs[1]):
        return False
    return all(
        repr(first[key]) == repr(second.get(key)) for key in first if _is_plain(first[key])
    ) and all(computes_the_same(a, b) for a, b in zip(*jaxprs, strict=True))


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in (int, float, bool, str) or isinstance(value, np.dtype)


def _same_values(xs: Sequence[Any], ys: Sequence[Any]) -> bool:
    return len(xs) == len(ys) and all(_same_value(x, y) for x, y in zip(xs, ys, strict=True))


def _same_value(x: Any, y: Any) -> bool:
    if any(hasattr(value, "dtype") and _jax.is_extended(value.dtype) for value in (x, y)):
        return bool(np.shape(x) == np.shape(y))  # a random key, which no number of devices is
    a, b = np.asarray(x), np.asarray(y)
    # As bytes, because a NaN is the same constant as itself.
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _type_of(var: Any) -> tuple[Any, ...]:
    return getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)
