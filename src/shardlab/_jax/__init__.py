"""Every private or version-dependent JAX name that the engine uses; nobody else touches `jax._src`.

Works on JAX 0.10.2 and on 0.12, where `ClosedJaxpr` and `Jaxpr` have become one class.
`tests/engine/test_jax_contract.py` holds each promise relied on here, so that a release that
breaks one is noticed by name.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config, core, dtypes, pjit, source_info_util
from jax._src import debugging as debugging
from jax._src import mesh as mesh_lib
from jax._src import shard_map as shard_map_lib
from jax._src.interpreters import batching, partial_eval
from jax.extend import core as jex_core

Literal = jex_core.Literal
Primitive = jex_core.Primitive
NamedAxisEffect = core.NamedAxisEffect
Infer = shard_map_lib.Infer


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return (jaxpr, consts) of an open or a closed jaxpr, of either generation."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, getattr(jaxpr, "consts", ())


def literal_value(literal: Any) -> Any:
    """Return the constant that a literal stands for, as an array of its own dtype."""
    dtype = literal.aval.dtype
    if is_extended(dtype):
        return literal.val
    return np.asarray(literal.val, dtype)


def is_extended(dtype: Any) -> bool:
    """Say whether `dtype` is one of JAX's own (random keys and the like), not a NumPy one."""
    return bool(dtypes.issubdtype(dtype, dtypes.extended))


def plain_aval(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """Return an abstract value that carries neither a sharding nor a varying-axes type."""
    return core.ShapedArray(shape, dtype, weak_type=weak_type)


def aval_of(value: Any) -> Any:
    return core.typeof(value)


def bind_primitive(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Bind `primitive`, also one whose parameters hold a jaxpr, and return a list of outputs."""
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def is_elementwise(primitive: Any) -> bool:
    """Say whether JAX itself registers `primitive` as acting on each element alone."""
    rule = batching.fancy_primitive_batchers.get(primitive)
    return isinstance(rule, functools.partial) and rule.func in (
        batching.broadcast_batcher,
        batching.vectorized_batcher,
    )


def trace_plain(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Trace `fun` to a closed jaxpr outside of any mesh, axis or vma context."""
    with no_mesh():
        return jax.make_jaxpr(fun)(*avals)


def batch_jaxpr(closed: Any, size: int, in_dims: tuple[int | None, ...]) -> tuple[Any, Any]:
    """Batch a closed jaxpr over one new axis; JAX decides where the axis ends up in each output."""
    axis = batching.AxisData(core.no_axis_name, size, None, None)
    with no_mesh():
        out, out_dims = batching.batch_jaxpr2(closed, axis, in_dims)
    return out, tuple(out_dims)


def without_dead_code(closed: Any) -> Any:
    """Return a closed jaxpr without what neither its outputs nor its effects depend on."""
    inner, _ = open_jaxpr(closed)
    live, _ = partial_eval.dce_jaxpr(inner, True, instantiate=True)
    return closed.replace(jaxpr=live) if inner is not closed else live


def eval_jaxpr(closed: Any, args: Sequence[Any]) -> list[Any]:
    return list(jex_core.jaxpr_as_fun(closed)(*args))


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """Enter plain single-device JAX: no mesh, no named axes, no vma types."""
    axis_env = core.trace_ctx.axis_env
    core.trace_ctx.set_axis_env(core.top_axis_env)
    try:
        with (
            mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
            config._check_vma(False),
        ):
            yield
    finally:
        core.trace_ctx.set_axis_env(axis_env)


def scan_operand_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many constants and how many carries a scan has, in this order before its xs."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # JAX 0.12
    return len(consts), len(carry)


def ppermute_order() -> str:
    """Say what a ppermute over axes in another order than the mesh does: mesh, written, refused."""
    check = getattr(config, "raise_on_ppermute_sort_diff", None)
    if check is None:
        return "mesh"
    return "refused" if check.value else "written"


@contextlib.contextmanager
def suppress_prints() -> Iterator[None]:
    """Within this block JAX prints nothing: 0.12 does before it refuses what a jit is to shard."""
    vars(pjit)["print"] = lambda *args: None
    try:
        yield
    finally:
        vars(pjit).pop("print", None)


# -------------------------------------------------------------------------- source of an equation


def source_of(eqn: Any) -> Any:
    """Context in which new operations carry the person's source line of `eqn`."""
    return source_info_util.user_context(eqn.source_info.traceback)


def source_line(eqn: Any) -> str:
    """Return the person's `file:line (function)` of an equation."""
    return str(source_info_util.summarize(eqn.source_info))


# Libraries whose lines a person did not write: a pmean in a BatchNorm belongs to who called it.
_LIBRARIES = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:flax|equinox|haiku|optax|chex|optimistix|lineax|diffrax)[/\\]"
)


def user_location(eqn: Any) -> tuple[str, int, str] | None:
    """Return the person's file, line and function of an equation; None where there is none."""
    first = None
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not _LIBRARIES.search(frame.file_name):
            return frame.file_name, frame.start_line, _plain_name(frame.function_name)
        first = first or frame
    if first is None:
        return None
    return first.file_name, first.start_line, _plain_name(first.function_name)


def is_user_file(file: str) -> bool:
    """Say whether a file is neither JAX's nor ours."""
    return bool(source_info_util.is_user_filename(file))


def _plain_name(qualified: str) -> str:
    """Return the function's own name: `step.<locals>.body` is `body`."""
    return qualified.rsplit(".<locals>.", 1)[-1]


def name_stack(eqn: Any) -> str:
    """Return the names and transforms around an equation, within its own jaxpr."""
    stack = eqn.source_info.name_stack
    return str(stack) if stack.stack else ""


def strip_sharding(aval: Any) -> Any:
    """Return `aval` without a sharding or a varying-axes type."""
    if not isinstance(aval, core.ShapedArray):
        return aval
    return plain_aval(aval.shape, aval.dtype, aval.weak_type)


def function_location(jaxpr: Any) -> tuple[str, str, int]:
    """Return the name of the function that a jaxpr was traced from, its file and its line."""
    told = str(open_jaxpr(jaxpr)[0].debug_info.func_src_info)
    match = re.fullmatch(r"(.*) at (.*):(\d+)", told)
    return (match[1], match[2], int(match[3])) if match else (told, "<shard_map>", 0)


# -------------------------------------------------------------------------------- debug callbacks


def is_ordered(params: dict[str, Any]) -> bool:
    """Say whether a debug callback keeps its place among others."""
    return params["effect"] is debugging.ordered_debug_effect


def print_now(*args: Any, **params: Any) -> None:
    """Do at once what `jax.debug.print` staged with these parameters."""
    debugging.debug_print_p.impl(*args, **params)


# ------------------------------------------------------------------------------------- placement


def has_sharding(aval: Any) -> bool:
    """Say whether an abstract value carries a sharding of its own (Explicit axes)."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns") or hasattr(getattr(item, "jaxpr", None), "eqns"):
                yield item


def context_mesh() -> Any:
    """Return the concrete mesh set by `jax.set_mesh` or `with mesh:`, or None."""
    for mesh in (mesh_lib.get_concrete_mesh(), mesh_lib.thread_resources.env.physical_mesh):
        if not mesh.empty:
            return mesh
    return None


# What tells a simulated mesh from a real one, also when only its AbstractMesh is left.
VIRTUAL_KIND = "virtual cpu"


def is_virtual_kind(mesh: Any) -> bool:
    """Say whether an AbstractMesh was made from virtual devices."""
    device = getattr(mesh, "abstract_device", None)
    return device is not None and device.device_kind == VIRTUAL_KIND


def jit_shardings(traced: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the `in_shardings` and `out_shardings` of the jit that was traced, for each array."""
    params = traced._params
    return tuple(params["in_shardings"]), tuple(params["out_shardings"])
