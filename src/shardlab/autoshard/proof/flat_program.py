"""A user's function as one of the leaves of its arguments, which returns a list of arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shardlab.simulator.retarget import retarget_programs
from shardlab.tracing.stage import argument_names, drop_non_arrays, program_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatProgram:
    """The function without the pytrees of its arguments: jax.export serialises only plain ones."""

    name: str
    leaves: tuple[Any, ...]  # as the user passed them
    argument_names: tuple[str, ...]
    avals: tuple[Any, ...]  # ShapeDtypeStructs without sharding
    fresh_function: Callable[[], Callable[..., Any]]
    output_names: list[str]  # known once it was traced
    # index of a result -> index of the argument that it replaces in the next step
    state: Mapping[int, int]

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        return self.fresh_function()


def flatten_program(
    f: Callable[..., Any], args: Sequence[Any], state: Mapping[int, int]
) -> FlatProgram:
    """Return the program for a tuple of pytrees of arrays and ShapeDtypeStructs."""
    leaves, tree = jax.tree.flatten(tuple(args))
    output_names: list[str] = []

    def fresh_function() -> Callable[..., Any]:
        def call_with_leaves(*arrays: Any) -> list[Any]:
            result = drop_non_arrays(f(*jax.tree.unflatten(tree, arrays)))
            paths, _ = jax.tree_util.tree_flatten_with_path(result)
            output_names[:] = [jax.tree_util.keystr(path) for path, _ in paths]
            return [leaf for _, leaf in paths]

        # JAX names the compiled module after the function.
        call_with_leaves.__name__ = call_with_leaves.__qualname__ = program_name(f)
        return call_with_leaves

    return FlatProgram(
        name=program_name(f),
        leaves=tuple(leaves),
        argument_names=tuple(name for name, _ in argument_names(f, args)),
        avals=tuple(_struct(leaf) for leaf in leaves),
        fresh_function=fresh_function,
        output_names=output_names,
        state=state,
    )


def jit_with_state(
    program: FlatProgram,
    function: Callable[..., Any],
    shardings: Sequence[Any],
    donated: Sequence[int] = (),
) -> Any:
    """Return the jit of a program, in which the new state is sharded as the old one.

    Without that, XLA shards new parameters as their gradients happen to be, and the reshard before
    the next step would be missing. `program` must have been traced before.
    """
    options = {}
    if program.state:
        n_outputs = len(program.output_names)
        options["out_shardings"] = [
            shardings[program.state[index]] if index in program.state else None
            for index in range(n_outputs)
        ]
    # keep_unused: an argument that is not read still takes its memory, as on real devices.
    return jax.jit(function, keep_unused=True, donate_argnums=tuple(donated), **options)


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    # As JAX types it: a Python number becomes a scalar of the default width.
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def donated_leaves(f: Callable[..., Any], args: Sequence[Any], mesh: Any) -> tuple[int, ...]:
    """Return the leaves of the arguments that `f` donates, if it is a jit with donated arguments.

    The proofs wrap `f` in a jit of their own, and the donations of an inner jit do not count.
    """
    if not isinstance(f, type(jax.jit(lambda: None))):
        return ()
    with retarget_programs(mesh):
        infos = jax.tree.leaves(f.trace(*args).args_info, is_leaf=lambda x: hasattr(x, "donated"))
    return tuple(index for index, info in enumerate(infos) if info.donated)
