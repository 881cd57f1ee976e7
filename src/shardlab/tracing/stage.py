"""A function, its arguments and a mesh -> the program that JAX traces. Nothing is run.

JAX traces in simulated mode, so the mesh may have any size and all checks of JAX apply: what it
rejects is raised with its own message.
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
    has_explicit_axes,
    mesh_with_axis_types,
    move_arguments,
    observe_program_meshes,
    retarget_programs,
)
from shardlab.simulator.simulated_mode import is_active, simulated
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh
from shardlab.tracing.compiler.needs_compiler import requested_shardings


def argument_names(f: Callable[..., Any], args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return each leaf of the arguments with its name, in JAX's order.

    >>> def step(params, x): ...
    >>> argument_names(step, [{"mlp": {"kernel": 1}}, 2])
    [("params['mlp']['kernel']", 1), ('x', 2)]
    """
    leaves = []
    for root, arg in zip(_parameter_names(f, len(args)), args, strict=True):
        leaves_of_arg, _ = jax.tree_util.tree_flatten_with_path(arg)
        leaves += [(root + jax.tree_util.keystr(path), leaf) for path, leaf in leaves_of_arg]
    return leaves


def _parameter_names(f: Callable[..., Any], n: int) -> list[str]:
    """Return the names of the first `n` parameters, numbered if they have no name."""
    names = []
    try:
        for parameter in inspect.signature(f).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{i}]" for i in range(n - len(names))]
                break
    except (TypeError, ValueError):
        pass
    return (names + [f"argument {i}" for i in range(len(names), n)])[:n]


def drop_non_arrays(results: Any) -> Any:
    """Return a tree without the leaves that JAX has no type for.

    >>> drop_non_arrays({"loss": 0.5, "name": "adam", "activation": max, "step": 3, "rest": None})
    {'activation': None, 'loss': 0.5, 'name': None, 'rest': None, 'step': 3}

    A function outside jit may return such leaves, and models often do: an activation function is
    a leaf. Of an object that is no pytree the arrays among its attributes are kept; otherwise the
    computation of these arrays would look like dead code.
    """
    if all(map(_has_jax_type, jax.tree.leaves(results))):
        return results
    return jax.tree.map(
        lambda leaf: leaf if _has_jax_type(leaf) else _contained_arrays(leaf), results
    )


def _contained_arrays(leaf: Any) -> list[Any] | None:
    leaves = [
        member
        for member in jax.tree.leaves(getattr(leaf, "__dict__", None))
        if _has_jax_type(member)
    ]
    return [member for member in leaves if isinstance(member, jax.Array)] or None


def _has_jax_type(leaf: Any) -> bool:
    # These describe a type; they are no value of the program.
    if isinstance(leaf, (type, jax.ShapeDtypeStruct)):
        return False
    if hasattr(leaf, "__jax_array__"):
        return True
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


# Text that describes an array: bf16[8,6], or 8x6:bf16. Other text is passed to the program.
_ARRAY_TEXT = re.compile(r"\s*(?:[\w<>]+\s*\[[\d\s,]*\]|\d+(?:x\d+)*:[\w<>]+)\s*")


class LoweringFailed(Exception):
    """A program that JAX traces but cannot lower; `__cause__` is JAX's exception."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedProgram:
    """A traced program, with what it takes to lower it."""

    program: str
    traced: Any  # jax.stages.Traced
    mesh: Mesh | None  # the requested one, of virtual devices; None: the program's own
    arrays: tuple[Any, ...]  # the arguments that are traced: arrays and ShapeDtypeStructs
    trace_again: Callable[[], Any] = dataclasses.field(repr=False, compare=False)
    names: tuple[str, ...] = ()  # of the arrays, such as `params['mlp']['kernel']`

    @property
    def jaxpr(self) -> Any:
        """Return the closed jaxpr."""
        return self.traced.jaxpr

    @property
    def sizes(self) -> MeshSizes:
        """Return the sizes of the requested mesh; empty if the program uses its own."""
        return tuple(self.mesh.shape.items()) if self.mesh is not None else ()

    @functools.cached_property
    def shardings(self) -> tuple[Any, ...]:
        """Return the sharding of each argument: that of the jit, or else its own."""
        # The compiled program uses the in_shardings of the jit where it has them.
        jit_shardings, _ = _jax.jit_shardings(self.traced)
        own_shardings = [getattr(array, "sharding", None) for array in self.arrays] or [None] * len(
            jit_shardings
        )
        if len(jit_shardings) != len(own_shardings):
            return tuple(own_shardings)
        pairs = zip(jit_shardings, own_shardings, strict=True)
        return tuple(a if isinstance(a, NamedSharding) else o for a, o in pairs)

    @property
    def result_shardings(self) -> tuple[Any, ...]:
        """Return the out_shardings of the jit for each result, if it has them."""
        return _jax.jit_shardings(self.traced)[1]

    @property
    def meshes(self) -> list[Any]:
        """Return the meshes of the program and its arguments, with repetitions."""
        named = [
            s for s in (*self.shardings, *self.result_shardings) if isinstance(s, NamedSharding)
        ]
        return [*(s.mesh for s in named), *_iterate_meshes(self.jaxpr)]

    def lower(self) -> Any:
        """Return the program lowered for its virtual devices (`jax.stages.Lowered`).

        Raises `LoweringFailed` from JAX's exception: some errors it finds only here.
        """
        try:
            with simulated_on(self.mesh):
                if self.mesh is not None or self.mesh_with_devices is None:
                    return self.traced.lower()
                # An abstract mesh gets its devices from the mesh in context.
                with jax.set_mesh(self.mesh_with_devices):
                    return self.trace_again().lower()
        except Exception as error:
            raise LoweringFailed from error

    @functools.cached_property
    def mesh_with_devices(self) -> Mesh | None:
        """Return the requested mesh, or the program's own if it is a virtual abstract mesh."""
        mesh = self.mesh or _find_abstract_mesh(self.jaxpr)
        return None if mesh is None else virtual_mesh(mesh)


def stage_program(f: Callable[..., Any], args: Sequence[Any], mesh: Any = None) -> StagedProgram:
    """Return `f(*args)`, traced as if on `mesh`.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> body = lambda x: jax.lax.psum(x, "data")
    >>> f = jax.shard_map(body, in_specs=P("data"), out_specs=P())
    >>> stage_program(f, ["f32[1024]"], "data=512").jaxpr.in_avals
    [ShapedArray(float32[1024])]

    An argument is an array, a `jax.ShapeDtypeStruct`, text such as "f32[8,6]", or a tree of them;
    anything else (numbers, strings, functions) is passed unchanged. The mesh is set in context,
    replaces the mesh of every shard_map and NamedSharding, and is passed as the parameter `mesh` if
    the function has one. With `mesh=None` the program must have its own.
    """
    # Before simulated mode starts, which replaces the devices that these arrays are on.
    args = [jax.tree.map(_drop_real_devices, arg) for arg in args]
    if mesh is None or isinstance(mesh, (Mesh, AbstractMesh)):
        return _trace_on_mesh(f, args, mesh)
    staged = _trace_with_axis_types(f, args, mesh)
    axis_order = next((m.axis_names for m in staged.meshes if not m.empty), ())
    sizes = dict(staged.sizes)
    if axis_order == tuple(sizes) or set(axis_order) != set(sizes):
        return staged
    # The axis order in the text "data=2,model=4" is not a request: in another order than the
    # program's own mesh, arrays would be resharded between the two.
    reordered = {name: sizes[name] for name in axis_order}
    return _trace_on_mesh(f, args, mesh_with_axis_types(reordered, [staged.mesh]))


def _trace_with_axis_types(f: Callable[..., Any], args: Sequence[Any], mesh: Any) -> StagedProgram:
    """Trace on a mesh that is given as text, with the axis types of the program's own mesh.

    That is the mesh of an argument, or one that the program uses within. The latter is not known
    before the program is traced, and JAX rejects an operation on an array of a mesh with Explicit
    axes within a mesh with Auto axes. Such a program is traced again, on Explicit axes.
    """
    typed_mesh = mesh_with_axis_types(mesh, _argument_meshes(args))
    is_typed = isinstance(typed_mesh, AbstractMesh) and has_explicit_axes(typed_mesh)
    staged = None
    with observe_program_meshes() as program_meshes:
        try:
            staged = _trace_on_mesh(f, args, typed_mesh)
        except Exception:
            if is_typed or not any(map(has_explicit_axes, program_meshes)):
                raise
    explicit_meshes = [] if is_typed else list(filter(has_explicit_axes, program_meshes))
    if staged is None:
        return _trace_on_mesh(f, args, mesh_with_axis_types(mesh, explicit_meshes))
    if explicit_meshes:
        # A program that also has a mesh with Auto axes may be accepted only there.
        with contextlib.suppress(Exception):
            return _trace_on_mesh(f, args, mesh_with_axis_types(mesh, explicit_meshes))
    return staged


def _trace_on_mesh(f: Callable[..., Any], args: Sequence[Any], mesh: Any) -> StagedProgram:
    with simulated_on(mesh) as target:
        if target is not None:
            args = move_arguments(args, target)
        args, keywords = staging_mesh(f, args, target)
        function, leaves = as_function_of_arrays(f, args, keywords)
        traced = function.trace(*leaves)
        arrays, names = _arrays_with_names(f, args, len(traced.jaxpr.in_avals))
        trace_again = functools.partial(function.trace, *leaves)
        staged = StagedProgram(
            program=program_name(f),
            traced=traced,
            mesh=target,
            arrays=arrays,
            trace_again=trace_again,
            names=names,
        )
        if target is not None:
            check_mesh_axes_match(staged.meshes, target)
        return staged


def _drop_real_devices(leaf: Any) -> Any:
    """Replace an array on real devices, which simulated mode hides, by its shape and sharding."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return leaf
    if is_virtual(sharding.mesh):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)


def _argument_meshes(args: Sequence[Any]) -> list[Any]:
    """Return the meshes that arguments are sharded over."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tuple(args))]
    return [s.mesh for s in shardings if isinstance(s, NamedSharding)]


def _find_abstract_mesh(jaxpr: Any) -> AbstractMesh | None:
    """Return the mesh of the first shard_map over a virtual abstract mesh."""
    virtual_meshes = (
        mesh for mesh in _iterate_meshes(jaxpr, of_shardings=False) if is_virtual(mesh)
    )
    return next((mesh for mesh in virtual_meshes if isinstance(mesh, AbstractMesh)), None)


def _iterate_meshes(jaxpr: Any, *, of_shardings: bool = True) -> Iterator[Any]:
    """Yield the meshes of shard_maps and of requested shardings, at any depth."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn.params["mesh"]
        elif of_shardings:
            yield from (sharding.mesh for sharding in requested_shardings(eqn.params))
        for body in _jax.inner_jaxprs(eqn.params):
            yield from _iterate_meshes(body, of_shardings=of_shardings)


@contextlib.contextmanager
def simulated_on(mesh: Any) -> Iterator[Mesh | None]:
    """Enter simulated mode, with the devices of `mesh` if there is one."""
    if mesh is not None:
        with retarget_programs(mesh) as target:
            yield target
    elif is_active():
        yield None
    else:
        with simulated():
            yield None


def program_name(f: Any) -> str:
    """Return the name of a function, also inside functools.partial.

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

    A mesh that the caller passes stays; it is replaced where it is used, like a program's own.
    """
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return tuple(args), {}
    # By name only: a user's function may take the mesh anywhere.
    parameter = parameters.get("mesh")
    if mesh is None or parameter is None or parameter.kind in _VARIADIC:
        return tuple(args), {}
    position = list(parameters).index("mesh")
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY or len(args) <= position:
        # A mesh bound by functools.partial is the program's own and is replaced like one.
        return tuple(args), {} if isinstance(_bound_keyword(f, "mesh"), Mesh) else {"mesh": mesh}
    has_mesh = args[position] is None or isinstance(args[position], (Mesh, AbstractMesh))
    # The caller omitted the mesh among the positional arguments: the rest moves back by one.
    return (*args[:position], *(() if has_mesh else (mesh,)), *args[position:]), {}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bound_keyword(f: Any, name: str) -> Any:
    return getattr(f, "keywords", {}).get(name)


# ------------------------------------------------------------------------------- traced arguments


def as_function_of_arrays(
    f: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Return a jitted function whose arguments are all arrays, and these arrays."""
    args = [jax.tree.map(parse_shape_argument, arg) for arg in args]
    if isinstance(f, _JIT_TYPE) and not keywords:
        # Unchanged, so that its static_argnums, shardings and donations still apply.
        return f, list(args)
    # Other leaves (numbers, strings, meshes) become constants of the traced function.
    leaves, tree = jax.tree.flatten(args)
    indices = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    # All leaves are arrays: the arguments keep their names in JAX's messages.
    if inspect.isfunction(f) and len(indices) == len(leaves) and not keywords:
        return jax.jit(_return_arrays_only(f)), list(args)

    def call_with_arrays(*arrays: Any) -> Any:
        new_leaves = list(leaves)
        for i, array in zip(indices, arrays, strict=True):
            new_leaves[i] = array
        return drop_non_arrays(f(*jax.tree.unflatten(tree, new_leaves), **keywords))

    # JAX names the compiled module and the name stack after the function.
    call_with_arrays.__name__ = call_with_arrays.__qualname__ = program_name(f)
    return jax.jit(call_with_arrays), [leaves[i] for i in indices]


def _return_arrays_only(f: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `f` in a new function each time: JAX caches traces by function, not by its globals."""

    @functools.wraps(f)
    def call_and_filter(*args: Any) -> Any:
        return drop_non_arrays(f(*args))

    return call_and_filter


_JIT_TYPE = type(jax.jit(lambda: None))


def _arrays_with_names(
    f: Callable[..., Any], args: Sequence[Any], count: int
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the arrays among the arguments and their names; none if JAX traced other leaves."""
    # JAX flattens arguments in this order too, so the counts tell whether the names fit.
    leaves = [(parse_shape_argument(leaf), name) for name, leaf in argument_names(f, args)]
    arrays = [(leaf, name) for leaf, name in leaves if _is_array(leaf)]
    if len(arrays) != count:  # the user's jit also traces numbers, or has static arrays
        arrays = leaves
    if len(arrays) != count:
        return (), ()
    return tuple(leaf for leaf, _ in arrays), tuple(name for _, name in arrays)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def parse_shape_argument(leaf: Any) -> Any:
    """Return the shape for text such as "f32[8,6]"; anything else unchanged."""
    if not isinstance(leaf, str) or not _ARRAY_TEXT.fullmatch(leaf):
        return leaf
    shape, dtype = parse_array(leaf)
    return jax.ShapeDtypeStruct(shape, _jax_dtype(dtype))


def _jax_dtype(dtype: Dtype) -> Any:
    if dtype.name.startswith("key<"):
        names = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
        # A key dtype has no constructor of its own; eval_shape makes one without computing a key.
        implementation = names[dtype.name]
        return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    return jax.dtypes.canonicalize_dtype(dtype.name)
