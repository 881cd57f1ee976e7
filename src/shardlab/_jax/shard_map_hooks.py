"""The hooks where JAX lowers, runs and stages a shard_map: those over virtual meshes are simulated.

Three entry points of JAX are replaced, for good, when `shardlab.simulator.shard_map` is loaded:

- the MLIR lowering of `shard_map_p` (under jit): the body becomes single-device operations;
- `EvalTrace.process_shard_map` (outside jit): the call runs as one compiled program;
- `DynamicJaxprTrace.process_shard_map` (tracing): errors about unknown axes get a suggestion.

A shard_map over any other mesh goes to JAX's original function.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import (  # whose frames are the user's
    core,  # EvalTrace and Tracer
    dispatch,  # whether jax_debug_nans is set
    source_info_util,
    traceback_util,
)
from jax._src import mesh as mesh_lib  # the concrete mesh in context
from jax._src import shard_map as shard_map_lib  # shard_map_p and its original rules
from jax._src.interpreters import mlir  # register_lowering
from jax._src.interpreters import partial_eval as pe  # DynamicJaxprTrace
from jax._src.lib.mlir import ir  # values of a module
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab import _jax
from shardlab._jax import device_hooks
from shardlab._jax.axis_errors import explain_axis_errors
from shardlab._jax.mesh_replacement import is_replacing_meshes
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab._jax.refs import uses_refs

# Packages whose frames JAX leaves out of tracebacks and source locations: the line of a shard_map
# is the user's, not that of the hook which stages it. Not all of shardlab, because the problems of
# the catalogue are user programs too.
_SHARDLAB = os.path.dirname(os.path.dirname(__file__))
for _package in ("_jax", "simulator", "tracing", "analysis", "recording"):
    traceback_util.register_exclusion(os.path.join(_SHARDLAB, _package))
_WORKERS = (os.path.join("judge", "worker"), "execution")
for _package in ("_jax", "simulator", "tracing", "analysis", "recording", *_WORKERS):
    source_info_util.register_exclusion(os.path.join(_SHARDLAB, _package) + os.sep)

_lower_on_devices = shard_map_lib._shard_map_lowering
_run_on_devices = shard_map_lib._shard_map_impl
_stage_for_devices = shard_map_lib._shard_map_staging


# (params, arrays, the sharded form of each array or None) -> the outputs gathered, and sharded
Simulate = Callable[[dict[str, Any], Any, Any], tuple[list[Any], list[Any]]]


def hook_shard_map(
    is_simulated: Callable[[Any], bool],
    simulate: Simulate,
    finish_outputs: Callable[..., Any] = lambda ctx, params, outs: outs,
) -> None:
    """Route shard_map over simulated meshes to `simulate`; every other mesh stays with JAX.

    `finish_outputs` may add to the lowered outputs: the conformance tests compile for real devices
    and pin the outputs to their shardings there.
    """

    def lower_shard_map(ctx: Any, *args: Any, **params: Any) -> Any:
        if not is_simulated(params["mesh"]):
            return _lower_on_devices(ctx, *args, **params)
        return finish_outputs(ctx, params, _lower_simulated(ctx, args, params, simulate))

    def run_shard_map(trace: Any, prim: Any, fun: Any, args: Any, **params: Any) -> Any:
        if not is_simulated(params["mesh"]):
            return _run_on_devices(trace, prim, fun, args, **params)
        return _run_eagerly(trace, prim, fun, args, params)

    def stage_shard_map(trace: Any, prim: Any, fun: Any, args: Any, **params: Any) -> Any:
        if is_simulated(params["mesh"]):
            fun = explain_axis_errors(fun, dict(params["mesh"].shape))
        return _stage_for_devices(trace, prim, fun, args, **params)

    # Not cacheable: a cached lowering becomes an MLIR function of its own, and the sharded
    # residuals that one shard_map keeps for the next would not be visible from inside it.
    mlir.register_lowering(shard_map_lib.shard_map_p, lower_shard_map, cacheable=False)
    core.EvalTrace.process_shard_map = run_shard_map
    pe.DynamicJaxprTrace.process_shard_map = stage_shard_map


def _lower_simulated(ctx: Any, nodes: Any, params: dict[str, Any], simulate: Simulate) -> Any:
    """Lower a shard_map to single-device operations.

    Each output is lowered twice: gathered, which is what JAX expects, and as shards, for a later
    shard_map of the same module that takes it with the same spec (its backward pass takes the
    residuals this way). XLA removes whichever form is unused as dead code.
    """
    # A dict per MLIR module that JAX passes to every lowering. Its own keys are tuples, so a string
    # cannot collide; the entries die with the module.
    residuals = ctx.module_context.cached_primitive_lowerings.setdefault("shardlab", {})
    entries = [residuals.get(_value_key(node)) for node in nodes]
    sharded_ins = [entry and entry[0] for entry in entries]
    avals = [
        entry[1] if entry else _jax.strip_sharding(aval)
        for entry, aval in zip(entries, ctx.avals_in, strict=True)
    ]
    args = [entry[2] if entry else node for entry, node in zip(entries, nodes, strict=True)]
    sharded_outs: list[Any] = []

    def simulate_both_forms(*arrays: Any) -> list[Any]:
        gathered, sharded_outs[:] = simulate(params, arrays, sharded_ins)
        return [*gathered, *(output.shards.array for output in sharded_outs)]

    with _jax.no_mesh():
        lower_both_forms = mlir.lower_fun(simulate_both_forms, multiple_results=True)
        outs = lower_both_forms(ctx.replace(avals_in=avals), *args)
    n_outs = len(sharded_outs)
    gathered_nodes, shard_nodes = outs[:n_outs], outs[n_outs:]
    for gathered_node, node, output in zip(gathered_nodes, shard_nodes, sharded_outs, strict=True):
        shards = output.shards.array
        aval = _jax.plain_aval(shards.shape, shards.dtype)
        # Not for random keys: their lowered values have another type than their aval.
        if not _jax.is_extended(shards.dtype):
            residuals[_value_key(gathered_node)] = (output.with_array(None), aval, node)
    return gathered_nodes


def _value_key(node: Any) -> Any:
    """Return what identifies a value of a module; a group of several values has no key."""
    return node if isinstance(node, ir.Value) else None


# ------------------------------------------------------------------------------- outside of jit


class _TracerPrinted(Exception):
    """A body prints a value, which exists only if the body is run and not traced."""


# What a body raises if it uses concrete values while it is traced.
_NEEDS_VALUES = (
    _TracerPrinted,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

_MAX_PROGRAMS = 256
_programs: OrderedDict[Any, Any] = OrderedDict()


def _run_eagerly(trace: Any, prim: Any, fun: Any, args: Any, params: dict[str, Any]) -> Any:
    """Run a shard_map outside of jit as one compiled program.

    JAX evaluates such a body operation by operation, so the body may branch on a value in Python
    (`if total > 0:`) or print one. If it does, JAX's own evaluation takes over.
    """
    params = {**params, "mesh": _resolve_mesh(params["mesh"], args)}
    is_concrete = isinstance(params["mesh"], Mesh)
    if is_concrete and dispatch.needs_check_special():
        # jax_debug_nans looks at the result of every operation of a body that runs outside of jit,
        # and reruns a jit that returns a NaN without jit: only operations may raise, not programs.
        return _run_on_devices(trace, prim, fun, args, **params)
    bound_outputs = []

    def bind_shard_map(*args: Any) -> Any:
        bound_outputs.append(prim.bind(*args, subfuns=(fun,), **params))
        return list(bound_outputs[-1])

    with jax.disable_jit(False):
        try:
            with _raise_on_tracer_print(is_concrete):
                closed = jax.make_jaxpr(bind_shard_map)(*args)
        except _NEEDS_VALUES:
            # JAX's eager evaluation needs the (virtual) devices of a concrete mesh.
            if not is_concrete:
                raise
            return _run_on_devices(trace, prim, fun, args, **params)
        if uses_refs(closed) and isinstance(params["mesh"], Mesh):
            # JAX's own evaluation rejects refs outside of jit, in words that depend on its version.
            return _run_on_devices(trace, prim, fun, args, **params)
        inner, consts = _jax.open_jaxpr(closed)
        _reject_device_put(inner)
        program = _cached_jit(inner, len(consts), _eager_out_shardings(inner))
        with raise_pending_deadlock(), jax.debug_nans(False), jax.debug_infs(False):
            outs = jax.block_until_ready(program(*consts, *args))
        shard_map_lib._maybe_check_special(outs)
        return bound_outputs[-1].update(outs)


@contextlib.contextmanager
def _raise_on_tracer_print(is_enabled: bool) -> Iterator[None]:
    """Within this block, converting a tracer to text raises `_TracerPrinted` in this thread."""
    if not is_enabled:
        yield
        return
    thread = threading.get_ident()
    original_repr = core.Tracer.__repr__

    def raise_or_repr(tracer: Any) -> str:
        if threading.get_ident() == thread:
            raise _TracerPrinted
        return str(original_repr(tracer))

    core.Tracer.__repr__ = raise_or_repr
    # Held back: if the body turns out to need values, it runs again and prints everything again.
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            yield
    except _TracerPrinted:
        output = io.StringIO()
        raise
    finally:
        core.Tracer.__repr__ = original_repr
        sys.stdout.write(output.getvalue())


_runs_without_devices = contextvars.ContextVar("runs_without_devices", default=False)


@contextlib.contextmanager
def allow_abstract_mesh() -> Iterator[None]:
    """Within this block a shard_map outside of jit runs on an AbstractMesh of virtual devices."""
    token = _runs_without_devices.set(True)
    try:
        yield
    finally:
        _runs_without_devices.reset(token)


def _resolve_mesh(mesh: Any, args: Any) -> Any:
    """Return the mesh that an eager call runs on, by JAX's own rules for an AbstractMesh."""
    context = mesh_lib.get_concrete_mesh()
    if not isinstance(mesh, AbstractMesh):
        return mesh
    # An unchanged program in simulated mode must pass arrays that say which devices to run on.
    needs_devices = device_hooks.is_simulated() and not _runs_without_devices.get()
    if _jax.is_virtual_kind(mesh) and (is_replacing_meshes() or not needs_devices):
        return context if context.abstract_mesh == mesh else mesh
    return shard_map_lib.get_mesh_from_args(args, mesh if context.empty else context)


def _reject_device_put(jaxpr: Any) -> None:
    """Raise as JAX does for device_put in an eager shard_map; inside jit it is ignored."""
    for eqn in jaxpr.eqns:
        for device in eqn.params.get("devices", ()) if eqn.primitive.name == "device_put" else ():
            if device is not None:
                # JAX's own sentence.
                raise ValueError(
                    "device_put with explicit device not allowed within "
                    f"shard_map-decorated functions, but got device {device}"
                )
        for body in _jax.inner_jaxprs(eqn.params):
            _reject_device_put(_jax.open_jaxpr(body)[0])


def _eager_out_shardings(jaxpr: Any) -> tuple[Any, ...] | None:
    """Return the shardings of the outputs, as JAX's `_match_spec` requests them.

    If every mesh axis is manual, JAX spells the spec of an output as `out_specs` does.
    """
    params = next((e.params for e in jaxpr.eqns if e.primitive is shard_map_lib.shard_map_p), None)
    if params is None or not isinstance(params["mesh"], Mesh):
        return None
    if frozenset(params["mesh"].axis_names) != frozenset(params["newly_manual_axes"]):
        return None
    return tuple(NamedSharding(params["mesh"], spec) for spec in params["out_specs"])


def _cached_jit(inner: Any, n_consts: int, out_shardings: tuple[Any, ...] | None) -> Any:
    """Return the jitted form of a program; one for all programs with the same text.

    An eager call traces its body each time, as JAX does, and must not compile it each time. Equal
    text means an equal program: functions in a jaxpr print with their address, which cannot be
    reused while this cache keeps the program alive.
    """
    key = (str(inner), tuple(str(var.aval) for var in inner.invars), out_shardings)
    if key not in _programs:

        def program(*args: Any) -> Any:
            return core.eval_jaxpr(inner, args[:n_consts], *args[n_consts:])

        _programs[key] = jax.jit(program, out_shardings=list(out_shardings or ()) or None)
        if len(_programs) > _MAX_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return _programs[key]
