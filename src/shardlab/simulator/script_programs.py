"""Runs a script in simulated mode and collects the sharded programs that it runs, each once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab._jax.refs import discharge_refs, takes_refs, uses_refs
from shardlab.errors import Deadlock
from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.replicas import ReplicaDifference, ReplicasDiffer
from shardlab.simulator.program_exit import ProgramExit
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.script_runner import execute_as_main
from shardlab.simulator.virtual_devices.jit_execution import (
    call_observers,
    program_observers,
)

_JAX_FOLDER = os.path.dirname(jax.__file__)
_HOOKS_FOLDER = os.path.dirname(_jax.__file__)


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """One sharded program that the script ran: a function, and the shapes it was called with."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    # What it was called with, and the names of its parameters; for a recording of that call.
    values: tuple[Any, ...] = dataclasses.field(default=(), repr=False, compare=False)
    parameter_names: tuple[str, ...] = ()


@dataclasses.dataclass(kw_only=True)
class ScriptRun:
    """What was observed of a script while it ran."""

    programs: list[ProgramRun] = dataclasses.field(default_factory=list)
    # Outputs whose replicas differed, and where.
    differing: list[tuple[ReplicaDifference, SourceLocation]] = dataclasses.field(
        default_factory=list
    )
    deadlock: Deadlock | None = None
    # The exception that the script raised, or its SystemExit if that reports a failure.
    ended: BaseException | None = None


def run_script(path: str, args: Sequence[str], *, keep_values: bool = False) -> ScriptRun:
    """Run a script as `python` would, and return the sharded programs that it ran.

    Call it in simulated mode. An exception or a deadlock of the script is returned together with
    the programs that ran before it. With `keep_values` also the arrays of each first call.
    """
    script_run, program_exit = ScriptRun(), ProgramExit()
    RUN_STATISTICS.clear(warn_once=True)
    with (
        observe_programs(script_run, keep_values=keep_values),
        _collect_warnings(script_run),
    ):
        try:
            execute_as_main(path, args)
            program_exit.join_threads()
            # Callbacks of the last program may still be running, and may warn.
            jax.effects_barrier()
        except Deadlock as error:
            script_run.deadlock = error
        except SystemExit as end:
            script_run.ended = end if end.code else None
        except Exception as error:
            script_run.ended = error
    RUN_STATISTICS.clear()
    return script_run


@contextlib.contextmanager
def observe_programs(script_run: ScriptRun, *, keep_values: bool = False) -> Iterator[None]:
    """Add the sharded programs that run within this block, each once.

    With `keep_values` also the arrays of their first call, which then stay in memory.
    """
    program_keys: set[Any] = set()
    # The program of each jaxpr whose call has not been seen yet. The jaxprs are kept alive, so that
    # no other one can get their id.
    waiting: dict[int, tuple[Any, int]] = {}

    def add_program(args: Any, params: dict[str, Any]) -> None:
        args, params = without_refs(args, params)
        closed = params["jaxpr"]
        avals = argument_types(closed, args)
        if not is_sharded_program(closed, avals, params):
            return
        # By text: a jit of a shard_map and the shard_map alone are the same program.
        key = (str(closed.jaxpr), str(avals))
        if key not in program_keys:
            program_keys.add(key)
            waiting[id(closed)] = closed, len(script_run.programs)
            script_run.programs.append(program_of_jaxpr(closed, avals, params))

    def add_values(closed: Any, arrays: Any) -> None:
        _, index = waiting.pop(id(closed), (None, -1))
        if index >= 0:
            script_run.programs[index] = dataclasses.replace(
                script_run.programs[index],
                values=tuple(arrays),
                parameter_names=_jax.argument_names(closed),
            )

    program_observers.append(add_program)
    if keep_values:
        call_observers.append(add_values)
    try:
        yield
    finally:
        program_observers.remove(add_program)
        if keep_values:
            call_observers.remove(add_values)


def without_refs(args: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a program that changes refs as one that takes and returns the arrays behind them."""
    jaxpr = params["jaxpr"]
    if not uses_refs(jaxpr):
        return args, params
    program = discharge_refs(
        jaxpr,
        params["donated_invars"],
        keep_unused=params["keep_unused"],
        has_refs=takes_refs(jaxpr),
    )
    shardings = dict(enumerate(params["in_shardings"]))
    out_shardings = iter(params["out_shardings"])
    return program.array_arguments(args), {
        **params,
        "jaxpr": program.jaxpr,
        "donated_invars": program.donated,
        # Of a ref the array itself says where it is.
        "in_shardings": (
            *(shardings[i] for i in program.used_args),
            *(None for _ in program.closed_over),
        ),
        "out_shardings": tuple(
            next(out_shardings) if position is None else None for position in program.updated_args
        )
        or params["out_shardings"],
    }


def program_of_jaxpr(closed: Any, avals: list[Any], params: dict[str, Any]) -> ProgramRun:
    """Return a program as a function that can be traced again."""
    name = sharded_program_name(closed, params["name"])

    def program(*args: Any) -> Any:
        return _jax.eval_jaxpr(closed, args)

    # jax.jit takes the name of the program from the function.
    program.__name__ = program.__qualname__ = name
    function = jax.jit(
        program,
        in_shardings=tuple(map(_specified_sharding, params["in_shardings"])),
        out_shardings=list(map(_specified_sharding, params["out_shardings"])),
    )
    return ProgramRun(name, function, tuple(avals))


def _specified_sharding(sharding: Any) -> Any:
    """Return None for JAX's markers (UNSPECIFIED, AUTO), which jax.jit does not accept."""
    return sharding if isinstance(sharding, jax.sharding.Sharding) else None


def argument_types(closed: Any, args: Any) -> list[Any]:
    """Return shapes, dtypes and shardings of the arguments that a jit was called with."""
    return [_shape_struct(aval, arg) for aval, arg in zip(closed.in_avals, args, strict=True)]


def _shape_struct(aval: Any, arg: Any) -> Any:
    sharding = getattr(arg, "sharding", None)
    is_sharded = isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh.size > 1
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=sharding if is_sharded else None, weak_type=aval.weak_type
    )


def is_sharded_program(closed: Any, avals: list[Any], params: dict[str, Any]) -> bool:
    """Return whether a program has a shard_map, or is a user's jit with a sharding.

    An operation outside of jit is a jit of JAX's own; listing those would bury the rest.
    """
    if _has_shard_map(closed):
        return True
    source_info = str(getattr(closed.jaxpr.debug_info, "func_src_info", ""))
    if f" at {_JAX_FOLDER}" in source_info:
        return False
    shardings = [aval.sharding for aval in avals]
    shardings += [*params["in_shardings"], *params["out_shardings"]]
    return any(
        getattr(sharding, "num_devices", 1) > 1
        for sharding in shardings
        if sharding is not None and _specified_sharding(sharding)
    )


def _has_shard_map(jaxpr: Any) -> bool:
    inner, _ = _jax.open_jaxpr(jaxpr)
    return any(
        eqn.primitive.name == "shard_map" or any(map(_has_shard_map, _jax.inner_jaxprs(eqn.params)))
        for eqn in inner.eqns
    )


def sharded_program_name(closed: Any, name: str) -> str:
    """Return the name of the function; for an eager shard_map the name of its body."""
    inner, _ = _jax.open_jaxpr(closed)
    source_info = getattr(inner.debug_info, "func_src_info", "") or ""
    # An eager shard_map runs in a jit of ours (`_jax/shard_map_hooks.py`), or of JAX.
    if _HOOKS_FOLDER not in source_info and f" at {_JAX_FOLDER}" not in source_info:
        return name
    bodies = [eqn.params["jaxpr"] for eqn in inner.eqns if eqn.primitive.name == "shard_map"]
    source_info = getattr(bodies[0].debug_info, "func_src_info", "") if bodies else ""
    return str(source_info).split(" at ")[0] or name


@contextlib.contextmanager
def _collect_warnings(script_run: ScriptRun) -> Iterator[None]:
    """Record `ReplicasDiffer` warnings instead of showing them; others stay the program's."""
    with warnings.catch_warnings():
        original_show = warnings.showwarning

        def record_or_show(
            message: Any, category: Any, filename: str, lineno: int, *rest: Any
        ) -> None:
            if isinstance(message, ReplicasDiffer):
                source = SourceLocation(filename, lineno)
                script_run.differing.append((message.difference, source))
            else:
                original_show(message, category, filename, lineno, *rest)

        module: Any = warnings  # mypy requires the exact type of the function it replaces
        module.showwarning = record_or_show
        warnings.simplefilter("always", ReplicasDiffer)
        yield
