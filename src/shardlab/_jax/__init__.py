"""Every private or version-dependent JAX name that shardlab uses; only this package has them.

Works on JAX 0.10.2 and on 0.12, which merged `ClosedJaxpr` and `Jaxpr` into one class.
`tests/_jax/test_jax_contract.py` tests each behaviour that this package relies on, so that a JAX
release that changes one fails there by name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import (
    config,  # settings without a public context manager: check_vma, ppermute order
    core,  # ShapedArray, axis environment, effects
    debugging,  # ordered_debug_effect and the impl behind jax.debug.print
    dtypes,  # extended dtypes (random keys)
    pjit,  # prints before it raises (JAX 0.12)
    source_info_util,  # the user's source line of an equation
)
from jax._src import mesh as mesh_lib  # the mesh in context
from jax._src import shard_map as shard_map_lib  # the sentinel Infer for in_specs
from jax._src.interpreters import batching, partial_eval  # batching and dead code of a jaxpr
from jax._src.interpreters.partial_eval import DynamicJaxprTracer  # its _origin_msg
from jax._src.lax import lax as lax_internal  # converts to weak types
from jax.extend import core as jex_core

Literal = jex_core.Literal
Primitive = jex_core.Primitive
NamedAxisEffect = core.NamedAxisEffect
Infer = shard_map_lib.Infer


# ---------------------------------------------------------------------------------------- jaxprs


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return (jaxpr, consts) of an open or a closed jaxpr, in JAX 0.10 and 0.12."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, getattr(jaxpr, "consts", ())


def literal_value(literal: Any) -> Any:
    """Return the value of a literal as an array of the literal's dtype."""
    dtype = literal.aval.dtype
    if is_extended(dtype):
        return literal.val
    # `val` may be a Python number, whose own dtype would be weak or 64-bit.
    return np.asarray(literal.val, dtype)


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns") or hasattr(getattr(item, "jaxpr", None), "eqns"):
                yield item


def eval_jaxpr(closed: Any, args: Sequence[Any]) -> list[Any]:
    return list(jex_core.jaxpr_as_fun(closed)(*args))


def trace_plain(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Trace `fun` to a closed jaxpr outside any mesh, axis or VMA context."""
    with no_mesh():
        return jax.make_jaxpr(fun)(*avals)


def batch_jaxpr(closed: Any, size: int, in_dims: tuple[int | None, ...]) -> tuple[Any, Any]:
    """Batch a closed jaxpr over one new axis; JAX decides where it goes in each output."""
    # batch_jaxpr2 is the only form of vmap that neither moves the output axes to a fixed position
    # nor broadcasts outputs that do not depend on the batched inputs.
    axis = batching.AxisData(core.no_axis_name, size, None, None)
    with no_mesh():
        out, out_dims = batching.batch_jaxpr2(closed, axis, in_dims)
    return out, tuple(out_dims)


def without_dead_code(closed: Any) -> Any:
    """Return a closed jaxpr without equations that no output and no effect depends on."""
    inner, _ = open_jaxpr(closed)
    live, _ = partial_eval.dce_jaxpr(inner, True, instantiate=True)
    return closed.replace(jaxpr=live) if inner is not closed else live


def scan_operand_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return the number of constants and of carries of a scan, in this order before its xs."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # JAX 0.12
    return len(consts), len(carry)


def jit_shardings(traced: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the `in_shardings` and `out_shardings` of a traced jit, one per array."""
    params = traced._params
    return tuple(params["in_shardings"]), tuple(params["out_shardings"])


# ------------------------------------------------------------------------- types and primitives


def is_extended(dtype: Any) -> bool:
    """Return whether `dtype` is one of JAX's own (random keys), not a NumPy one."""
    return bool(dtypes.issubdtype(dtype, dtypes.extended))


def plain_aval(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """Return an abstract value without a sharding and without a VMA type."""
    return core.ShapedArray(shape, dtype, weak_type=weak_type)


def strip_sharding(aval: Any) -> Any:
    """Return `aval` without its sharding and its VMA type."""
    if not isinstance(aval, core.ShapedArray):
        return aval
    return plain_aval(aval.shape, aval.dtype, aval.weak_type)


def has_sharding(aval: Any) -> bool:
    """Return whether an abstract value carries a sharding of its own (Explicit axes)."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


def type_text(aval: Any) -> str:
    """Return JAX's own text of a type, such as `f32[4,8]{V:data}` or `f32[16@data,4]`."""
    try:
        return str(aval.str_short(short_dtypes=True))
    except TypeError:  # not every abstract value takes the option
        return str(aval.str_short())


def declared_varying_axes(aval: Any) -> frozenset[str]:
    """Return the mesh axes over which the type says that a value varies (its VMA type)."""
    manual = getattr(aval, "manual_axis_type", None)
    if manual is not None:
        return frozenset(manual.varying)
    return frozenset(getattr(aval, "vma", None) or ())


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """Return the names of the parameters that a jaxpr was traced with; empty if not known."""
    inner, _ = open_jaxpr(jaxpr)
    names = getattr(inner.debug_info, "arg_names", None) or ()
    return tuple(map(str, names)) if len(names) == len(inner.invars) else ()


def result_paths(jaxpr: Any) -> tuple[str, ...]:
    """Return the path of each result among those of the function; empty if not known."""
    inner, _ = open_jaxpr(jaxpr)
    paths = getattr(inner.debug_info, "result_paths", None) or ()
    return tuple(map(str, paths)) if len(paths) == len(inner.outvars) else ()


def aval_of(value: Any) -> Any:
    return core.typeof(value)


def match_weak_type(value: Any, aval: Any) -> Any:
    """Return `value` with the weak type of `aval`: it decides the dtype of what follows."""
    is_weak = getattr(aval, "weak_type", False)
    if getattr(core.typeof(value), "weak_type", False) == is_weak:
        return value
    # The public lax.convert_element_type cannot make a type weak.
    return lax_internal._convert_element_type(value, aval.dtype, weak_type=is_weak)


def bind_primitive(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Bind `primitive` and return a list of outputs."""
    # get_bind_params: equations store jaxprs where bind expects functions (custom_jvp_call, ...).
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def is_elementwise(primitive: Any) -> bool:
    """Return whether JAX itself registers `primitive` as acting on each element alone."""
    # There is no public flag; the batching rules that JAX gives to elementwise primitives are one.
    rule = batching.fancy_primitive_batchers.get(primitive)
    return isinstance(rule, functools.partial) and rule.func in (
        batching.broadcast_batcher,
        batching.vectorized_batcher,
    )


def ppermute_order() -> str:
    """Return what a ppermute over axes that are not in mesh order does: mesh, written, refused."""
    # JAX 0.10 has no such setting and always numbers devices in mesh order.
    check = getattr(config, "raise_on_ppermute_sort_diff", None)
    if check is None:
        return "mesh"
    return "refused" if check.value else "written"


def is_ordered(params: dict[str, Any]) -> bool:
    """Return whether a debug callback is ordered with respect to others."""
    return params["effect"] is debugging.ordered_debug_effect


def print_now(*args: Any, **params: Any) -> None:
    """Execute at once what `jax.debug.print` staged with these parameters."""
    debugging.debug_print_p.impl(*args, **params)


# ------------------------------------------------------------------------------ mesh in context


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """Within this block JAX is plain single-device JAX: no mesh, no named axes, no VMA types."""
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


def context_mesh() -> Any:
    """Return the concrete mesh set by `jax.set_mesh` or `with mesh:`, or None."""
    # `with mesh:` sets only the older thread_resources.
    for mesh in (mesh_lib.get_concrete_mesh(), mesh_lib.thread_resources.env.physical_mesh):
        if not mesh.empty:
            return mesh
    return None


def is_outside_of_trace() -> bool:
    """Return whether no jit, grad or shard_map is being traced, so that `jax.set_mesh` works."""
    return bool(core.trace_state_clean())


class VirtualAbstractDevice(mesh_lib.AbstractDevice):  # type: ignore[misc]  # JAX is Any to mypy
    """The device that an AbstractMesh of virtual devices names; prints as that of a real CPU mesh.

    It tells a virtual mesh from a real one in a jaxpr, where the concrete mesh is gone. A type, not
    a device kind of its own: the two must never be equal, because JAX's caches of traces and
    compiled programs would mix them up, and a program that reads `device_kind` expects "cpu".
    Dataclasses of different types are unequal.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"AbstractDevice({self._repr()})"


def mark_virtual_meshes(is_virtual_device: Callable[[Any], bool]) -> None:
    """Let `Mesh.abstract_mesh` name a `VirtualAbstractDevice` if the devices are virtual."""
    make_abstract_mesh = mesh_lib.Mesh.__dict__["abstract_mesh"].func

    def abstract_mesh(self: Any) -> Any:
        mesh = make_abstract_mesh(self)
        if mesh.empty or not is_virtual_device(self.devices.flat[0]):
            return mesh
        device = mesh.abstract_device
        marked = VirtualAbstractDevice(
            device_kind=device.device_kind, num_cores=device.num_cores, platform=device.platform
        )
        return mesh_lib.AbstractMesh(
            mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=marked
        )

    replacement = functools.cached_property(abstract_mesh)
    replacement.__set_name__(mesh_lib.Mesh, "abstract_mesh")
    mesh_lib.Mesh.abstract_mesh = replacement


def is_virtual_kind(mesh: Any) -> bool:
    """Return whether an AbstractMesh was made from virtual devices."""
    return isinstance(getattr(mesh, "abstract_device", None), VirtualAbstractDevice)


# -------------------------------------------------------------------------- source of an equation


def source_of(eqn: Any) -> Any:
    """Return a context in which new operations carry the user's source line of `eqn`."""
    return source_info_util.user_context(eqn.source_info.traceback)


def source_line(eqn: Any) -> str:
    """Return the user's `file:line (function)` of an equation."""
    return str(source_info_util.summarize(eqn.source_info))


_JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep

# Libraries of layers and optimizers: a pmean in a BatchNorm is located at the user's call.
_LIBRARIES = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:flax|equinox|haiku|optax|chex|optimistix|lineax|diffrax)[/\\]"
)


def user_location(eqn: Any) -> tuple[str, int, str] | None:
    """Return the user's file, line and function of an equation; None if it has none."""
    first = None
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not _LIBRARIES.search(frame.file_name):
            return frame.file_name, frame.start_line, _plain_name(frame.function_name)
        first = first or frame
    if first is None:
        return None
    return first.file_name, first.start_line, _plain_name(first.function_name)


def user_frames(eqn: Any) -> list[tuple[str, int, str]]:
    """Return the file, line and function of each frame of the user's code, innermost first."""
    return [
        (frame.file_name, frame.start_line, _plain_name(frame.function_name))
        for frame in source_info_util.user_frames(eqn.source_info.traceback)
    ]


def user_columns(eqn: Any) -> tuple[int, int]:
    """Return the first and last column of an operation in its line; (0, 0) if unknown."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not _LIBRARIES.search(frame.file_name):
            return frame.start_column, frame.end_column
    return 0, 0


def is_user_file(file: str) -> bool:
    """Return whether a file belongs neither to JAX nor to shardlab (see `shard_map_hooks`)."""
    return bool(source_info_util.is_user_filename(file))


def is_jax_file(file: str) -> bool:
    """Return whether a file is part of the package jax."""
    return file.startswith(_JAX_FOLDER)


def _plain_name(qualified: str) -> str:
    """Return the function's own name: `step.<locals>.body` is `body`."""
    return qualified.rsplit(".<locals>.", 1)[-1]


def name_stack(eqn: Any) -> str:
    """Return the named scopes and transforms around an equation, within its own jaxpr."""
    stack = eqn.source_info.name_stack
    return str(stack) if stack.stack else ""


def function_location(jaxpr: Any) -> tuple[str, str, int]:
    """Return the name, file and line of the function that a jaxpr was traced from."""
    # JAX stores them as one text, "name at file:line".
    source_info = str(open_jaxpr(jaxpr)[0].debug_info.func_src_info)
    match = re.fullmatch(r"(.*) at (.*):(\d+)", source_info)
    return (match[1], match[2], int(match[3])) if match else (source_info, "<shard_map>", 0)


# ------------------------------------------------------------------------------- quieter tracing


@contextlib.contextmanager
def suppress_prints() -> Iterator[None]:
    """Within this block pjit prints nothing: JAX 0.12 does before it rejects a jit's shardings."""
    # A global of the module shadows the builtin; nothing else that prints is affected.
    vars(pjit)["print"] = lambda *args: None
    try:
        yield
    finally:
        vars(pjit).pop("print", None)


@contextlib.contextmanager
def skip_tracer_origins() -> Iterator[None]:
    """Within this block errors about tracers do not say where in the program these come from.

    JAX 0.10 searches the whole program for that text. Flax 0.12 asks each value for a sharding that
    it does not have and drops the error, so initializing a model of many layers would take time
    quadratic in its length. JAX 0.12 no longer searches.
    """
    original = DynamicJaxprTracer._origin_msg
    DynamicJaxprTracer._origin_msg = lambda self: ""
    try:
        yield
    finally:
        DynamicJaxprTracer._origin_msg = original
