"""Places in a program where a `with_sharding_constraint` may pay, marked while JAX traces it.

Marked are what a scan carries from step to step, and the results of matrix products outside of the
backward pass: where people write constraints. A mark is a `with_sharding_constraint` that leaves
every dimension unconstrained, so JAX's own rules repeat it for the cotangent, in remat and in
vmap, just as they would for a constraint that the user writes there. For a candidate the marks get
shardings in the lowered module; marks without one are removed (`shardy_program.py`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.lax import lax as lax_module  # dot_general as jnp calls it
from jax._src.lax.control_flow import loops  # scan as libraries call it
from jax.sharding import NamedSharding, PartitionSpec

from shardlab._jax.module_source import caller_line

MARK = "shardlab_constraint_point"

# Lines of scans, by the number in their marks. JAX writes only one frame to the location of an
# operation, and in a scan's body that is ours. Kept for good: jits are cached with their marks.
_scan_lines: list[str] = []


@contextlib.contextmanager
def mark_constraint_points(mesh: Any) -> Iterator[None]:
    """Within this block, mark the constraint points of programs that JAX traces.

    Jits inside of the program are cached with their marks, for traces on the same mesh in context;
    an open constraint changes nothing there.
    """
    with _replace_functions(lambda value, scope: _open_constraint(value, mesh, scope)):
        yield


def marked_line(name_stack: str) -> str | None:
    """Return the line of the scan whose carry is marked; None if the operation's own counts.

    >>> marked_line("jvp()/while/dot_general") is None
    True
    """
    _, mark, number = name_stack.partition(f"{MARK}_scan_")
    return _scan_lines[int(number.partition("/")[0].rstrip(")"))] if mark else None


def _open_constraint(value: Any, mesh: Any, scope: str) -> Any:
    spec = PartitionSpec(*(PartitionSpec.UNCONSTRAINED,) * value.ndim)
    with jax.named_scope(scope):
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, spec))


def _is_activation(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim >= 2 and jnp.issubdtype(value.dtype, jnp.floating)


@contextlib.contextmanager
def _replace_functions(constrain: Callable[[Any, str], Any]) -> Iterator[None]:
    original_scan, original_dot = loops.scan, lax_module.dot_general

    def constrain_leaf(leaf: Any, scope: str) -> Any:
        return constrain(leaf, scope) if _is_activation(leaf) else leaf

    @functools.wraps(original_scan)
    def scan(f: Any, init: Any, *args: Any, **keywords: Any) -> Any:
        scope = f"{MARK}_scan_{len(_scan_lines)}"
        _scan_lines.append(caller_line())

        def body(carry: Any, x: Any) -> Any:
            return f(jax.tree.map(lambda leaf: constrain_leaf(leaf, scope), carry), x)

        return original_scan(body, init, *args, **keywords)

    @functools.wraps(original_dot)
    def dot_general(*args: Any, **keywords: Any) -> Any:
        result = original_dot(*args, **keywords)
        # JAX's rules for derivatives and batching call it too; the user writes no constraint there.
        if sys._getframe(1).f_globals.get("__name__") == lax_module.__name__:
            return result
        return constrain_leaf(result, MARK)

    replaced = [
        (owner, name, new)
        for owner, name, new in (
            (loops, "scan", scan),
            (jax.lax, "scan", scan),
            (lax_module, "dot_general", dot_general),
            (jax.lax, "dot_general", dot_general),
        )
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, new in replaced:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)
