"""The places where JAX traces and runs a shard_map, and how those over virtual meshes differ."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import core, source_info_util, traceback_util
from jax._src import mesh as mesh_lib
from jax._src import shard_map as shard_map_lib
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lib.mlir import ir
from jax.sharding import AbstractMesh, Mesh

from shardlab import _jax
from shardlab._jax.axis_errors import explain_axis_errors
from shardlab._jax.pending_deadlock import raise_pending_deadlock

# Packages whose frames JAX leaves out of tracebacks and source locations: the line of a shard_map
# is the user's, not that of the hook which stages it. Not all of shardlab, because the problems of
# the catalogue are user programs too.
_SHARDLAB = os.path.dirname(os.path.dirname(__file__))
for _package in ("_jax", "simulator", "tracing", "analysis"):
    traceback_util.register_exclusion(os.path.join(_SHARDLAB, _package))
for _package in ("_jax", "simulator", "tracing", "analysis", os.path.join("judge", "worker")):
    source_info_util.register_exclusion(os.path.join(_SHARDLAB, _package) + os.sep)

_lower_on_devices = shard_map_lib._shard_map_lowering
_run_on_devices = shard_map_lib._shard_map_impl
_stage_for_devices = shard_map_lib._shard_map_staging


# (params, arrays, how each is kept) -> the outputs joined, and kept apart
Simulate = Callable[[dict[str, Any], Any, Any], tuple[list[Any], list[Any]]]


def hook_shard_map(
    is_simulated: Callable[[Any], bool],
    simulate: Simulate,
    finish: Callable[..., Any] = lambda ctx, params, outs: outs,
) -> None:
    """Route shard_map over simulated meshes to `simulate`; every other mesh stays JAX's own.

    `finish` may add to the lowered outputs (the conformance tests compile for real devices, and
    pin the outputs to them there).
    """

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        if not is_simulated(params["mesh"]):
            return _lower_on_devices(ctx, *args, **params)
        return finish(ctx, params, _lower_simulated(ctx, args, params, simulate))

    def evaluate(trace: Any, prim: Any, fun: Any, args: Any, **params: Any) -> Any:
        if not is_simulated(params["mesh"]):
            return _run_on_devices(trace, prim, fun, args, **params)
        return _evaluate(trace, prim, fun, args, params)

    def stage(trace: Any, prim: Any, fun: Any, args: Any, **params: Any) -> Any:
        if is_simulated(params["mesh"]):
            fun = explain_axis_errors(fun, dict(params["mesh"].shape))
        return _stage_for_devices(trace, prim, fun, args, **params)

    # Not cacheable: a cached lowering is a function of its own, and what one shard_map keeps
    # for the next could not be seen from there.
    mlir.register_lowering(shard_map_lib.shard_map_p, lower, cacheable=False)
    core.EvalTrace.process_shard_map = evaluate
    pe.DynamicJaxprTrace.process_shard_map = stage


def _lower_simulated(ctx: Any, nodes: Any, params: dict[str, Any], simulate: Simulate) -> Any:
    """Lower a shard_map to single-device operations.

    What it leaves over is joined for JAX, and remembered unjoined for a later shard_map of the
    same module that takes it in; whichever form is not used is dead code.
    """
    remembered = ctx.module_context.cached_primitive_lowerings.setdefault("shardlab", {})
    found = [remembered.get(_key(node)) for node in nodes]
    kept = [entry and entry[0] for entry in found]
    avals = [
        entry[1] if entry else _jax.strip_sharding(aval)
        for entry, aval in zip(found, ctx.avals_in, strict=True)
    ]
    args = [entry[2] if entry else node for entry, node in zip(found, nodes, strict=True)]
    left: list[Any] = []

    def whole(*arrays: Any) -> list[Any]:
        joined, left[:] = simulate(params, arrays, kept)
        return [*joined, *(value.shards.array for value in left)]

    with _jax.no_mesh():
        outs = mlir.lower_fun(whole, multiple_results=True)(ctx.replace(avals_in=avals), *args)
    joined, apart = outs[: len(left)], outs[len(left) :]
    for whole_node, node, value in zip(joined, apart, left, strict=True):
        shards = value.shards.array
        aval = _jax.plain_aval(shards.shape, shards.dtype)
        if not _jax.is_extended(shards.dtype):
            remembered[_key(whole_node)] = (value.with_array(None), aval, node)
    return joined


def _key(node: Any) -> Any:
    """Return what tells one value of a module from another; several values have no key."""
    return node if isinstance(node, ir.Value) else None


# ----------------------------------------------------------------------------- outside of any jit


class _Printed(Exception):
    """A body prints a value that it would hold, were it run and not traced."""


# What a body that looks at its values while it is traced gives rise to.
_LOOKED_AT_VALUES = (
    _Printed,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

_MAX_PROGRAMS = 256
_programs: OrderedDict[Any, Any] = OrderedDict()


def _evaluate(trace: Any, prim: Any, fun: Any, args: Any, params: dict[str, Any]) -> Any:
    """Run an eager shard_map as one compiled program.

    Where the body decides by a value in Python (`if total > 0:`) or prints one, which only an
    eager shard_map can, JAX's own operation-by-operation evaluation takes over.
    """
    params = {**params, "mesh": _devices_of(params["mesh"], args)}
    shape = []

    def whole(*args: Any) -> Any:
        shape.append(prim.bind(*args, subfuns=(fun,), **params))
        return list(shape[-1])

    with jax.disable_jit(False):
        try:
            with _stopping_at_prints(isinstance(params["mesh"], Mesh)):
                closed = jax.make_jaxpr(whole)(*args)
        except _LOOKED_AT_VALUES:
            if not isinstance(params["mesh"], Mesh):
                raise
            return _run_on_devices(trace, prim, fun, args, **params)
        inner, consts = _jax.open_jaxpr(closed)
        _refuse_device_put(inner)
        with raise_pending_deadlock():
            outs = jax.block_until_ready(_compiled(closed, inner, len(consts))(*consts, *args))
        return shape[-1].update(outs)


@contextlib.contextmanager
def _stopping_at_prints(is_wanted: bool) -> Iterator[None]:
    """Within this block, turning a tracer into text raises `_Printed` in this thread."""
    if not is_wanted:
        yield
        return
    here = threading.get_ident()
    shown = core.Tracer.__repr__

    def show(tracer: Any) -> str:
        if threading.get_ident() == here:
            raise _Printed
        return str(shown(tracer))

    core.Tracer.__repr__ = show
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    except _Printed:
        said = io.StringIO()  # all of it will be said again
        raise
    finally:
        core.Tracer.__repr__ = shown
        sys.stdout.write(said.getvalue())


def _devices_of(mesh: Any, args: Any) -> Any:
    """Return the mesh that an eager call runs on, by JAX's own rules for an AbstractMesh."""
    context = mesh_lib.get_concrete_mesh()
    if not isinstance(mesh, AbstractMesh):
        return mesh
    if _jax.is_virtual_kind(mesh):
        return context if context.abstract_mesh == mesh else mesh
    return shard_map_lib.get_mesh_from_args(args, mesh if context.empty else context)


def _refuse_device_put(jaxpr: Any) -> None:
    """Refuse what an eager shard_map refuses, in JAX's words; inside jit it is ignored."""
    for eqn in jaxpr.eqns:
        for device in eqn.params.get("devices", ()) if eqn.primitive.name == "device_put" else ():
            if device is not None:
                raise ValueError(
                    "device_put with explicit device not allowed within "
                    f"shard_map-decorated functions, but got device {device}"
                )
        for body in _jax.inner_jaxprs(eqn.params):
            _refuse_device_put(_jax.open_jaxpr(body)[0])


def _compiled(closed: Any, inner: Any, n_consts: int) -> Any:
    """Return the compiled form of a program; the same for programs that read the same.

    An eager call traces its body each time, as JAX does, and must not compile it each time. Two
    programs with the same text do the same: functions in it are printed with their address, which
    is theirs alone while this cache holds the program.
    """
    key = (str(inner), tuple(str(var.aval) for var in inner.invars))
    if key not in _programs:

        def program(*args: Any) -> Any:
            return core.eval_jaxpr(inner, args[:n_consts], *args[n_consts:])

        _programs[key] = jax.jit(program)
        if len(_programs) > _MAX_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return _programs[key]
