"""Models that are JAX objects: flattened into arrays with axis names and specs, never allocated.

This covers NNX modules and variables, boxes of linen (`nn.Partitioned` and relatives), and any
pytree that is registered with JAX.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardlab._jax import skip_tracer_origins
from shardlab.errors import InvalidModel
from shardlab.planner.models.pytree import AnnotatedLeaf, Children
from shardlab.sharding.mesh import mesh_text
from shardlab.sharding.spec import Spec, parse_spec

FlaxRules = tuple[tuple[str, Any], ...]
# Metadata of an NNX variable with its axis names: out_sharding since Flax 0.12, the others before.
_ANNOTATIONS = ("out_sharding", "sharding_names", "sharding")


def inspect_abstract_model(
    constructor: Callable[..., Any], inspect_model: Callable[[Any], Any]
) -> Any:
    """Return what `inspect_model` returns for the abstract model that a function or class builds.

    Nothing is computed or allocated, so a model may be larger than any machine. The model is
    inspected inside of the trace, because it may contain objects that no trace can return:
    functions, configurations, text.
    """
    from flax import nnx

    results: list[Any] = []
    make_arguments = _find_arguments(constructor)
    eager_sharding: Any = nnx.use_eager_sharding
    # With eager sharding, Flax would apply the annotations at once and raise without a mesh.
    with (
        eager_sharding(False),
        skip_tracer_origins(),
        _abstract_mesh_while_tracing(),
        keep_flax_rules(),
    ):
        jax.eval_shape(lambda: results.append(inspect_model(constructor(**make_arguments()))))
    return results[0]


@contextmanager
def _abstract_mesh_while_tracing() -> Iterator[None]:
    """Let the constructor of a model call `jax.set_mesh`, which JAX forbids inside of a trace."""
    # An abstract mesh may be set inside of a trace, and has all that shapes need.
    original = jax.set_mesh
    jax.set_mesh = lambda mesh: jax.sharding.use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh))
    try:
        yield
    finally:
        jax.set_mesh = original


def flatten_one_level(node: Any) -> Children | None:
    """Return the children of any container of JAX or Flax, one level deep; None for a leaf.

    A box around an array is a container too; its only child is an `AnnotatedLeaf`.
    """
    # By sys.modules: if Flax was not imported, the node cannot be one of its objects.
    if (nnx := sys.modules.get("flax.nnx")) is not None:
        if isinstance(node, nnx.Variable):
            return [((), _unbox_variable(node))]
        if isinstance(node, nnx.Module):
            return _module_variables(node)
    if _is_linen_box(node):
        return [((), _unbox_linen(node))]
    flattened = jax.tree_util.default_registry.flatten_one_level_with_keys(node)
    if flattened is None:
        return None
    return [((jax.tree_util.keystr((key,), simple=True),), child) for key, child in flattened[0]]


def annotate_array(leaf: Any) -> AnnotatedLeaf:
    """Return a leaf with the spec that it is sharded by."""
    spec, mesh = _array_spec(leaf)
    return AnnotatedLeaf(value=leaf, spec=spec, mesh=mesh)


# ----------------------------------------------------------------------------------- Flax's rules


def current_flax_rules() -> FlaxRules:
    """Return the logical axis rules that are active, of linen and NNX alike."""
    from flax.core import spmd

    return tuple(spmd.get_logical_axis_rules() or ())


@contextmanager
def keep_flax_rules() -> Iterator[None]:
    """Store the active logical axis rules in every NNX variable and linen box that is created.

    Flax applies the rules of `logical_axis_rules` when it creates an array, if there is a mesh.
    Without one it forgets them, and a model that was built under its own rules would lose them.
    """
    from flax import linen, nnx

    create_value: Any = nnx.Variable.create_value
    init: Any = linen.LogicallyPartitioned.__init__

    def create_with_rules(variable: Any, value: Any) -> Any:
        metadata = variable.get_metadata()
        if (active := current_flax_rules()) and metadata.get("out_sharding") is not None:
            variable_rules = dict(metadata.get("sharding_rules") or ())
            variable.set_metadata(sharding_rules=tuple({**dict(active), **variable_rules}.items()))
        return create_value(variable, value)

    def init_with_rules(box: Any, *args: Any, **kwargs: Any) -> None:
        init(box, *args, **kwargs)
        if box.rules is None and (active := current_flax_rules()):
            object.__setattr__(box, "rules", active)  # the box is a frozen dataclass

    _set_attribute(nnx.Variable, "create_value", create_with_rules)
    _set_attribute(linen.LogicallyPartitioned, "__init__", init_with_rules)
    try:
        yield
    finally:
        _set_attribute(nnx.Variable, "create_value", create_value)
        _set_attribute(linen.LogicallyPartitioned, "__init__", init)


def _set_attribute(kind: Any, name: str, value: Any) -> None:
    setattr(kind, name, value)  # mypy rejects assigning to a method


# ----------------------------------------------------------------------------------- NNX


def _module_variables(module: Any) -> Children:
    """Return the variables of a module; a variable that is shared appears once."""
    from flax import nnx

    # nnx.split resolves shared references, which tied embeddings use.
    flat_state = nnx.to_flat_state(nnx.split(module)[1])
    return [
        (
            tuple(map(str, path)),
            leaf
            if isinstance(leaf, nnx.Variable)
            else replace(annotate_array(leaf), is_trained=False),
        )
        for path, leaf in flat_state
    ]


def _unbox_variable(variable: Any) -> Any:
    """Return the array of a variable with its annotations, or the tree that it contains."""
    from flax import nnx

    def annotate_kind(leaf: Any) -> AnnotatedLeaf:
        return replace(
            annotate_array(leaf),
            is_trained=isinstance(variable, nnx.Param),
            is_optimizer_state=isinstance(variable, nnx.OptState),
        )

    value = variable.get_raw_value()
    if not jax.tree_util.all_leaves([value]):
        return jax.tree.map(annotate_kind, value)
    leaf = annotate_kind(value)
    metadata = variable.get_metadata()
    annotation = next(
        (metadata[key] for key in _ANNOTATIONS if metadata.get(key) is not None), None
    )
    if leaf.spec is not None or annotation is None:
        return leaf
    sharding = getattr(annotation, "sharding", annotation)  # of a jax.experimental.layout.Format
    if isinstance(sharding, NamedSharding):
        spec, mesh = _spec_and_mesh(sharding)
        return replace(leaf, spec=spec, mesh=mesh)
    rules = {**dict(current_flax_rules()), **dict(metadata.get("sharding_rules") or ())}
    return _apply_annotation(leaf, parse_spec(sharding).entries, rules)


def _apply_annotation(
    leaf: AnnotatedLeaf, entries: tuple[Any, ...], rules: dict[str, Any]
) -> AnnotatedLeaf:
    """Return the array with axis names, each of which is a mesh axis or a logical name.

    Which one it is depends on the mesh of the plan; with rules it is decided already.
    """
    axes = entries if all(isinstance(entry, str | None) for entry in entries) else None
    leaf = replace(leaf, axes=axes, flax_api="nnx")
    if not rules and axes is not None:
        return leaf
    mapped = (rules.get(entry, entry) if isinstance(entry, str) else entry for entry in entries)
    return replace(leaf, spec=Spec(*mapped))


# ----------------------------------------------------------------------------------- linen's boxes


def _is_linen_box(node: Any) -> bool:
    """Return whether this is an array in a box with axis names, as linen annotates them."""
    meta = sys.modules.get("flax.core.meta")
    return meta is not None and isinstance(node, meta.Partitioned)


def _unbox_linen(box: Any) -> AnnotatedLeaf:
    # The names of nn.Partitioned are mesh axes, those of nn.LogicallyPartitioned logical names.
    if type(box).__name__ != "LogicallyPartitioned":
        return AnnotatedLeaf(value=box.value, spec=Spec(*box.names))
    if not (rules := box.rules or current_flax_rules()):
        return AnnotatedLeaf(value=box.value, axes=tuple(box.names))
    from flax.linen import spmd

    spec = parse_spec(spmd.logical_to_mesh_axes(box.names, rules))
    return AnnotatedLeaf(value=box.value, axes=tuple(box.names), spec=spec)


# ----------------------------------------------------------------------------------- specs


def _array_spec(value: Any) -> tuple[Spec | None, str]:
    """Return the spec that an array or a struct is sharded by, and the mesh; None if unsharded."""
    if isinstance(value, jax.core.Tracer):
        # Inside of a trace an array has no devices yet, but on a mesh with Explicit axes (sharding
        # in types) its type has a spec.
        sharding = getattr(jax.typeof(value), "sharding", None)
        has_spec = sharding is not None and any(entry is not None for entry in sharding.spec)
        return _spec_and_mesh(sharding) if has_spec else (None, "")
    sharding = getattr(value, "sharding", None)
    return _spec_and_mesh(sharding) if isinstance(sharding, NamedSharding) else (None, "")


def _spec_and_mesh(sharding: Any) -> tuple[Spec, str]:
    return parse_spec(sharding.spec), mesh_text(sharding.mesh.shape.items())


# ----------------------------------------------------------------------------------- constructors


def _find_arguments(constructor: Callable[..., Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that creates the arguments: `nnx.Rngs` and random keys, nothing else."""
    parameters = _open_parameters(constructor)
    rngs_names = [parameter.name for parameter in parameters if _is_rngs(parameter)]
    required = [parameter.name for parameter in parameters if _is_required(parameter)]
    key_names = [name for name in required if name in ("key", "rng")]
    if missing := [name for name in required if name not in rngs_names and name not in key_names]:
        name = getattr(constructor, "__name__", type(constructor).__name__)
        random_name = next(iter([*rngs_names, *key_names]), "rngs")  # "rngs" in NNX, else a key
        raise InvalidModel(
            f"{name} cannot be called without {', '.join(map(repr, missing))}.",
            where=f"{name}({', '.join(map(_parameter_text, parameters))})",
            fix=f"give a function that needs only {random_name}, as in lambda {random_name}: "
            f"{name}(..., {random_name}={random_name}).",
        )

    def make_arguments() -> dict[str, Any]:
        from flax import nnx

        arguments: dict[str, Any] = {name: nnx.Rngs(0) for name in rngs_names}
        return arguments | {name: jax.random.key(0) for name in key_names}

    return make_arguments


def _parameter_text(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is written, without the address of a function that is a default."""
    default = parameter.default
    if callable(default) and default is not parameter.empty:
        function_name = getattr(default, "__name__", type(default).__name__)
        return f"{parameter.name}={function_name}"
    return str(parameter)


def _open_parameters(constructor: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function or class that are not bound yet."""
    bound = constructor if isinstance(constructor, partial) else partial(constructor)
    if isinstance(bound.func, type):
        # NNX calls a class through its metaclass, whose own signature is (*args, **kwargs).
        init = inspect.getattr_static(bound.func, "__init__")
        bound = partial(init, None, *bound.args, **bound.keywords)
    try:
        return list(inspect.signature(bound).parameters.values())
    except (TypeError, ValueError):
        return []


def _is_rngs(parameter: inspect.Parameter) -> bool:
    # Under `from __future__ import annotations` an annotation is text.
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else ""
    annotation = annotation or getattr(parameter.annotation, "__name__", "")
    return parameter.kind is not parameter.POSITIONAL_ONLY and (
        parameter.name == "rngs" or annotation.rpartition(".")[2] == "Rngs"
    )


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )
