"""A person's function, its arguments and a mesh -> the program that JAX traces. Nothing is run.

JAX does the tracing, in simulated mode, so a mesh of any size will do and all of JAX's checks are
made: what it refuses is raised in its own words.

What a person calls the arrays among a function's arguments: `params['mlp']['kernel']`.

What a program returns, as JAX can trace it: arrays, without what stands between them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardlab import _jax
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.mesh import MeshSizes
from shardlab.sharding.shape import parse_array
from shardlab.simulator.retarget import (
    check_mesh_axes_match,
    mesh_with_axis_types,
    move_arguments,
    retarget_programs,
)
from shardlab.simulator.simulated_mode import is_active, simulated
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh
from shardlab.tracing.compiler.needs_compiler import shardings_asked_for


def argument_names(f: Callable[..., Any], args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return each leaf of the arguments with its name, in JAX's order.

    >>> def step(params, x): ...
    >>> argument_names(step, [{"mlp": {"kernel": 1}}, 2])
    [("params['mlp']['kernel']", 1), ('x', 2)]
    """
    leaves = []
    for root, arg in zip(_parameters(f, len(args)), args, strict=True):
        found, _ = jax.tree_util.tree_flatten_with_path(arg)
        leaves += [(root + jax.tree_util.keystr(path), leaf) for path, leaf in found]
    return leaves


def _parameters(f: Callable[..., Any], n: int) -> list[str]:
    """Return the names of the first `n` parameters, by number where they have none."""
    names = []
    try:
        for each in inspect.signature(f).parameters.values():
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                names.append(each.name)
            elif each.kind is each.VAR_POSITIONAL:
                names += [f"{each.name}[{i}]" for i in range(n - len(names))]
                break
    except (TypeError, ValueError):
        pass
    return (names + [f"argument {i}" for i in range(len(names), n)])[:n]


def drop_non_arrays(results: Any) -> Any:
    """Return a tree with everything taken out of it that JAX has no type for.

    >>> drop_non_arrays({"loss": 0.5, "name": "adam", "activation": max, "step": 3, "rest": None})
    {'activation': None, 'loss': 0.5, 'name': None, 'rest': None, 'step': 3}

    A function that is called outside of jit may return such things, and models mostly do: an
    activation is a leaf of them. An object that JAX does not look into leaves behind the arrays
    that it holds, since what leads to them would otherwise look like work for nothing.
    """
    if all(map(_is_traced, jax.tree.leaves(results))):
        return results
    return jax.tree.map(lambda leaf: leaf if _is_traced(leaf) else _held(leaf), results)


def _held(leaf: Any) -> list[Any] | None:
    held = [each for each in jax.tree.leaves(getattr(leaf, "__dict__", None)) if _is_traced(each)]
    return [each for each in held if isinstance(each, jax.Array)] or None


def _is_traced(leaf: Any) -> bool:
    if isinstance(leaf, (type, jax.ShapeDtypeStruct)):
        return False
    if hasattr(leaf, "__jax_array__"):
        return True
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


# Text that is an array and nothing else: bf16[8,6], or 8x6:bf16. Other text is a plain argument.
_ARRAY_TEXT = re.compile(r"\s*(?:[\w<>]+\s*\[[\d\s,]*\]|\d+(?:x\d+)*:[\w<>]+)\s*")


class NotLowered(Exception):
    """A program that JAX has traced and does not lower; its cause says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedProgram:
    """A traced program, and what is needed to lower it."""

    program: str
    traced: Any  # jax.stages.Traced
    mesh: Mesh | None  # the one given, of virtual devices; None: the program's own
    arrays: tuple[Any, ...]  # the arguments that are traced: arrays and ShapeDtypeStructs
    trace_again: Callable[[], Any] = dataclasses.field(repr=False, compare=False)
    names: tuple[str, ...] = ()  # what a person calls each, such as `params['mlp']['kernel']`

    @property
    def jaxpr(self) -> Any:
        """Return the closed jaxpr."""
        return self.traced.jaxpr

    @property
    def sizes(self) -> MeshSizes:
        """Return the axes of the mesh that was given; empty where the program has its own."""
        return tuple(self.mesh.shape.items()) if self.mesh is not None else ()

    @functools.cached_property
    def shardings(self) -> tuple[Any, ...]:
        """Return how each argument is sharded: by the jit that takes it, or else by itself."""
        asked, _ = _jax.jit_shardings(self.traced)
        own = [getattr(array, "sharding", None) for array in self.arrays] or [None] * len(asked)
        if len(asked) != len(own):
            return tuple(own)
        pairs = zip(asked, own, strict=True)
        return tuple(a if isinstance(a, NamedSharding) else o for a, o in pairs)

    @property
    def returned(self) -> tuple[Any, ...]:
        """Return how the jit shards each result, where it says so."""
        return _jax.jit_shardings(self.traced)[1]

    @property
    def meshes(self) -> list[Any]:
        """Return the meshes that the program and its arguments name, as often as they do."""
        placed = [s for s in (*self.shardings, *self.returned) if isinstance(s, NamedSharding)]
        return [*(s.mesh for s in placed), *_meshes(self.jaxpr)]

    def lower(self) -> Any:
        """Return the program lowered for its virtual devices (`jax.stages.Lowered`).

        Raises `NotLowered` from what JAX raises: some mistakes it finds only here.
        """
        try:
            with in_mode(self.mesh):
                if self.mesh is not None or self.full_mesh is None:
                    return self.traced.lower()
                # An abstract mesh has no devices until one in context does.
                with jax.set_mesh(self.full_mesh):
                    return self.trace_again().lower()
        except Exception as error:
            raise NotLowered from error

    @functools.cached_property
    def full_mesh(self) -> Mesh | None:
        """Return the mesh given, or the program's own where that is one of our abstract ones."""
        own = self.mesh or _abstract_mesh(self.jaxpr)
        return None if own is None else virtual_mesh(own)


def stage(f: Callable[..., Any], args: Sequence[Any], mesh: Any = None) -> StagedProgram:
    """Return `f(*args)`, traced as if on `mesh`.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> body = lambda x: jax.lax.psum(x, "data")
    >>> f = jax.shard_map(body, in_specs=P("data"), out_specs=P())
    >>> stage(f, ["f32[1024]"], "data=512").jaxpr.in_avals
    [ShapedArray(float32[1024])]

    An argument is an array, a `jax.ShapeDtypeStruct`, text such as "f32[8,6]", or a tree of them;
    all else (numbers, strings, functions) is passed as it is. The mesh is the one in context, the
    one that every shard_map and NamedSharding gets in the place of its own, and the keyword `mesh`
    of a function that has one left. With `mesh=None` the program must bring its own.
    """
    args = [jax.tree.map(_shape_if_spread, arg) for arg in args]
    if mesh is None or isinstance(mesh, (Mesh, AbstractMesh)):
        return _staged(f, args, mesh)
    staged = _staged(f, args, mesh_with_axis_types(mesh, _placed_on(args)))
    order = next((m.axis_names for m in staged.meshes if not m.empty), ())
    sizes = dict(staged.sizes)
    if order == tuple(sizes) or set(order) != set(sizes):
        return staged
    # Text has an order too, which nobody meant: two orders at once would move arrays about.
    reordered = {name: sizes[name] for name in order}
    return _staged(f, args, mesh_with_axis_types(reordered, [staged.mesh]))


def _staged(f: Callable[..., Any], args: Sequence[Any], mesh: Any) -> StagedProgram:
    with in_mode(mesh) as given:
        if given is not None:
            args = move_arguments(args, given)
        args, keywords = staging_mesh(f, args, given)
        fun, leaves = _of_arrays(f, args, keywords)
        traced = fun.trace(*leaves)
        arrays, names = _named_arrays(f, args, len(traced.jaxpr.in_avals))
        again = functools.partial(fun.trace, *leaves)
        staged = StagedProgram(
            program=program_name(f),
            traced=traced,
            mesh=given,
            arrays=arrays,
            trace_again=again,
            names=names,
        )
        if given is not None:
            check_mesh_axes_match(staged.meshes, given)
        return staged


def _shape_if_spread(leaf: Any) -> Any:
    """Return the shape and sharding of an array on real devices, which simulated mode hides."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return leaf
    if is_virtual(sharding.mesh):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)


def _placed_on(args: Sequence[Any]) -> list[Any]:
    """Return the meshes that arguments are sharded over."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tuple(args))]
    return [s.mesh for s in shardings if isinstance(s, NamedSharding)]


def _abstract_mesh(jaxpr: Any) -> AbstractMesh | None:
    """Return the mesh of the first shard_map over virtual devices that are not listed."""
    found = (mesh for mesh in _meshes(jaxpr, of_shardings=False) if is_virtual(mesh))
    return next((mesh for mesh in found if isinstance(mesh, AbstractMesh)), None)


def _meshes(jaxpr: Any, *, of_shardings: bool = True) -> Iterator[Any]:
    """Yield the meshes of shard_maps, and of the shardings that are asked for, at any depth."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn.params["mesh"]
        elif of_shardings:
            yield from (sharding.mesh for sharding in shardings_asked_for(eqn.params))
        for body in _jax.inner_jaxprs(eqn.params):
            yield from _meshes(body, of_shardings=of_shardings)


@contextlib.contextmanager
def in_mode(mesh: Any) -> Iterator[Mesh | None]:
    """Enter simulated mode, for the devices of `mesh` where one is given."""
    if mesh is not None:
        with retarget_programs(mesh) as given:
            yield given
    elif is_active():
        yield None
    else:
        with simulated():
            yield None


def program_name(f: Any) -> str:
    """Return what a person would call the function.

    >>> program_name(functools.partial(max, 1))
    'max'
    """
    while isinstance(f, functools.partial):
        f = f.func
    name = getattr(f, "__name__", None) or type(f).__name__
    return str(name)


def staging_mesh(f: Any, args: Sequence[Any], mesh: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords of `f`, with `mesh` as its parameter of that name.

    >>> staging_mesh(lambda x, mesh, n: None, [1, 2], "data=4")
    ((1, 'data=4', 2), {})
    >>> staging_mesh(lambda x, mesh=None: None, [1], "data=4")
    ((1,), {'mesh': 'data=4'})

    A mesh that the person gave stays, and is replaced where it is used, like a program's own.
    """
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return tuple(args), {}
    wanted = parameters.get("mesh")
    if mesh is None or wanted is None or wanted.kind in _VARIADIC:
        return tuple(args), {}
    at = list(parameters).index("mesh")
    if wanted.kind is inspect.Parameter.KEYWORD_ONLY or len(args) <= at:
        return tuple(args), {} if isinstance(_default(f, "mesh"), Mesh) else {"mesh": mesh}
    is_given = args[at] is None or isinstance(args[at], (Mesh, AbstractMesh))
    # The mesh left out among the others: what follows has moved into its place.
    return (*args[:at], *(() if is_given else (mesh,)), *args[at:]), {}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _default(f: Any, name: str) -> Any:
    return getattr(f, "keywords", {}).get(name)


# ---------------------------------------------------------------------- what is traced and what not


def _of_arrays(
    f: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Return a jitted function of arrays alone, and the arrays."""
    args = [jax.tree.map(parse_shape_argument, arg) for arg in args]
    if isinstance(f, _JITTED) and not keywords:
        # As it is: what it says of its arguments (static, sharded, donated) stays said.
        return f, list(args)
    leaves, tree = jax.tree.flatten(args)
    at = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    if inspect.isfunction(f) and len(at) == len(leaves) and not keywords:
        return jax.jit(_results_of_arrays(f)), list(args)

    def program(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            filled[i] = array
        return drop_non_arrays(f(*jax.tree.unflatten(tree, filled), **keywords))

    program.__name__ = program.__qualname__ = program_name(f)
    return jax.jit(program), [leaves[i] for i in at]


def _results_of_arrays(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a new function each time: JAX remembers traces by function, not by its globals."""

    @functools.wraps(f)
    def program(*args: Any) -> Any:
        return drop_non_arrays(f(*args))

    return program


_JITTED = type(jax.jit(lambda: None))


def _named_arrays(
    f: Callable[..., Any], args: Sequence[Any], count: int
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the arrays among the arguments and their names; none where JAX traced others."""
    leaves = [(parse_shape_argument(leaf), name) for name, leaf in argument_names(f, args)]
    arrays = [(leaf, name) for leaf, name in leaves if _is_array(leaf)]
    if len(arrays) != count:  # a jit of its own also traces numbers, and holds some arrays static
        arrays = leaves
    if len(arrays) != count:
        return (), ()
    return tuple(leaf for leaf, _ in arrays), tuple(name for _, name in arrays)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def parse_shape_argument(leaf: Any) -> Any:
    """Return the shape that text such as "f32[8,6]" stands for; anything else as it is."""
    if not isinstance(leaf, str) or not _ARRAY_TEXT.fullmatch(leaf):
        return leaf
    shape, dtype = parse_array(leaf)
    return jax.ShapeDtypeStruct(shape, _jax_dtype(dtype))


def _jax_dtype(dtype: Dtype) -> Any:
    if dtype.name.startswith("key<"):
        names = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
        implementation = names[dtype.name]
        return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    return jax.dtypes.canonicalize_dtype(dtype.name)
