"""A whole script in simulated mode: every sharded program that it runs, each once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab.errors import Deadlock
from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.replicas import ReplicasDiffer
from shardlab.simulator.script_runner import execute_as_main, join_threads
from shardlab.simulator.virtual_devices import jit_execution as execute

_JAX = os.path.dirname(jax.__file__)


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """One sharded program that the script ran: a function, and the shapes it was called with."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclasses.dataclass(kw_only=True)
class ScriptRun:
    """What was seen of a script while it ran."""

    programs: list[ProgramRun] = dataclasses.field(default_factory=list)
    # Outputs whose copies differed: what was said, and where.
    differing: list[tuple[str, SourceLocation]] = dataclasses.field(default_factory=list)
    deadlock: Deadlock | None = None
    # What the script raised, or its own end where that tells of a failure.
    ended: BaseException | None = None


def run_script(path: str, args: Sequence[str]) -> ScriptRun:
    """Run a script as `python` would, and return what sharded programs it ran.

    To be called in simulated mode. What the script raises comes back with what ran until then, and
    so does a deadlock, at which real devices would have hung.
    """
    seen = ScriptRun()
    with _watching(seen), _hearing(seen):
        try:
            execute_as_main(path, args)
            join_threads()
            jax.effects_barrier()
        except Deadlock as error:
            seen.deadlock = error
        except SystemExit as end:
            seen.ended = end if end.code else None
        except Exception as error:
            seen.ended = error
    return seen


@contextlib.contextmanager
def _watching(seen: ScriptRun) -> Iterator[None]:
    known: set[Any] = set()

    def watch(args: Any, params: dict[str, Any]) -> None:
        closed = params["jaxpr"]
        avals = [_shaped(aval, arg) for aval, arg in zip(closed.in_avals, args, strict=True)]
        if not _is_of_interest(closed, avals, params):
            return
        # A jit of a shard_map and the shard_map alone are the same program.
        key = (str(closed.jaxpr), str(avals))
        if key not in known:
            known.add(key)
            seen.programs.append(_program(closed, avals, params))

    execute.watchers.append(watch)
    try:
        yield
    finally:
        execute.watchers.remove(watch)


def _program(closed: Any, avals: list[Any], params: dict[str, Any]) -> ProgramRun:
    name = _name(closed, params["name"])

    def program(*args: Any) -> Any:
        return _jax.eval_jaxpr(closed, args)

    program.__name__ = program.__qualname__ = name
    function = jax.jit(
        program,
        in_shardings=tuple(map(_asked, params["in_shardings"])),
        out_shardings=list(map(_asked, params["out_shardings"])),
    )
    return ProgramRun(name, function, tuple(avals))


def _asked(sharding: Any) -> Any:
    return sharding if isinstance(sharding, jax.sharding.Sharding) else None


def _shaped(aval: Any, arg: Any) -> Any:
    sharding = getattr(arg, "sharding", None)
    is_sharded = isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh.size > 1
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=sharding if is_sharded else None, weak_type=aval.weak_type
    )


def _is_of_interest(closed: Any, avals: list[Any], params: dict[str, Any]) -> bool:
    """Say whether a program has a shard_map, or is the person's own and touches a sharding.

    A sum or a product outside of jit is a jit too, of JAX's own; to list each would bury the rest.
    """
    if _has_shard_map(closed):
        return True
    made_at = str(getattr(closed.jaxpr.debug_info, "func_src_info", ""))
    if f" at {_JAX}" in made_at:
        return False
    shardings = [aval.sharding for aval in avals]
    shardings += [*params["in_shardings"], *params["out_shardings"]]
    return any(getattr(s, "num_devices", 1) > 1 for s in shardings if s is not None and _asked(s))


def _has_shard_map(jaxpr: Any) -> bool:
    inner, _ = _jax.open_jaxpr(jaxpr)
    return any(
        eqn.primitive.name == "shard_map" or any(map(_has_shard_map, _jax.inner_jaxprs(eqn.params)))
        for eqn in inner.eqns
    )


def _name(closed: Any, name: str) -> str:
    """Return the name of the function; of an eager shard_map that of its body."""
    inner, _ = _jax.open_jaxpr(closed)
    info = getattr(inner.debug_info, "func_src_info", "") or ""
    if os.path.dirname(__file__) not in info:
        return name
    bodies = [eqn.params["jaxpr"] for eqn in inner.eqns if eqn.primitive.name == "shard_map"]
    info = getattr(bodies[0].debug_info, "func_src_info", "") if bodies else ""
    return str(info).split(" at ")[0] or name


@contextlib.contextmanager
def _hearing(seen: ScriptRun) -> Iterator[None]:
    """Take warnings about copies that differ for what they are; all others are the program's."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def hear(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
            if issubclass(category, ReplicasDiffer):
                seen.differing.append((str(message), SourceLocation(filename, lineno)))
            else:
                shown(message, category, filename, lineno, *rest)

        module: Any = warnings  # mypy would want the exact type of the function it replaces
        module.showwarning = hear
        warnings.simplefilter("always", ReplicasDiffer)
        yield
