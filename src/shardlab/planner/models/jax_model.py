"""Models that are JAX objects: taken apart into arrays with names and specs, never allocated.

Flax's logical rules: those that hold around an array's making, kept until we look at it.

Flax applies the rules of `logical_axis_rules` when an array is made, if there is a mesh to put it
on. Without one it forgets them, and a model that was made under its own rules would lose them.

An array with what its author said of it, out of whatever it was wrapped in.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardlab._jax import skip_tracer_origins
from shardlab.errors import InvalidModel
from shardlab.sharding.spec import Spec, parse_spec

Rules = tuple[tuple[str, Any], ...]


def rules_around() -> Rules:
    """Return the logical rules that hold here, of linen and NNX alike."""
    from flax.core import spmd

    return tuple(spmd.get_logical_axis_rules() or ())


@contextmanager
def keep_rules() -> Iterator[None]:
    """Let every NNX variable, and every box of linen, have the rules that it was made under."""
    from flax import linen, nnx

    create_value: Any = nnx.Variable.create_value
    init: Any = linen.LogicallyPartitioned.__init__

    def create_with_rules(variable: Any, value: Any) -> Any:
        if (around := rules_around()) and variable.get_metadata().get("out_sharding") is not None:
            own = dict(variable.get_metadata().get("sharding_rules") or ())
            variable.set_metadata(sharding_rules=tuple({**dict(around), **own}.items()))
        return create_value(variable, value)

    def init_with_rules(box: Any, *args: Any, **kwargs: Any) -> None:
        init(box, *args, **kwargs)
        if box.rules is None and (around := rules_around()):
            object.__setattr__(box, "rules", around)

    _set(nnx.Variable, "create_value", create_with_rules)
    _set(linen.LogicallyPartitioned, "__init__", init_with_rules)
    try:
        yield
    finally:
        _set(nnx.Variable, "create_value", create_value)
        _set(linen.LogicallyPartitioned, "__init__", init)


def _set(kind: Any, name: str, value: Any) -> None:
    setattr(kind, name, value)


Key = tuple[str, ...]
Children = list[tuple[Key, Any]]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A leaf: names of its array axes, its own spec, the mesh this is for."""

    value: Any
    axes: tuple[str | None, ...] | None = None
    spec: Spec | None = None
    is_trained: bool = True
    mesh: str = ""
    is_state: bool = False  # of an optimizer
    flax: str = ""  # whose names these are: "nnx", where it is told


# What NNX variables call their annotation: out_sharding since Flax 0.12, the others before.
_ANNOTATIONS = ("out_sharding", "sharding_names", "sharding")


def look_at_made(make: Callable[..., Any], look: Callable[[Any], Any]) -> Any:
    """Return what `look` says of what a function or class makes, while its arrays are shapes alone.

    Nothing is computed or allocated, so a model may be larger than any machine. Looked at inside
    of the trace, it may hold things that no trace returns: functions, configurations, text.
    """
    from flax import nnx

    said: list[Any] = []
    arguments = _arguments(make)
    eagerly: Any = nnx.use_eager_sharding
    # Annotations are what we came for; with no mesh set Flax would refuse to act on them.
    with eagerly(False), skip_tracer_origins(), _set_mesh_while_tracing(), keep_rules():
        jax.eval_shape(lambda: said.append(look(make(**arguments()))))
    return said[0]


@contextmanager
def _set_mesh_while_tracing() -> Iterator[None]:
    """Let what makes a model set a mesh as it is used to: inside of a trace JAX refuses that.

    An abstract mesh may be set there, and does all that shapes need.
    """
    original = jax.set_mesh
    jax.set_mesh = lambda mesh: jax.sharding.use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh))
    try:
        yield
    finally:
        jax.set_mesh = original


def children_of(node: Any) -> Children | None:
    """Return the parts of whatever JAX or Flax takes for a container, one level; None for a leaf.

    What is wrapped around an array is a container too, whose one part is a `Named`.
    """
    if (nnx := sys.modules.get("flax.nnx")) is not None:
        if isinstance(node, nnx.Variable):
            return [((), _unwrapped(node))]
        if isinstance(node, nnx.Module):
            return _parts_of_module(node)
    if _is_box(node):
        return [((), _named_box(node))]
    parts = jax.tree_util.default_registry.flatten_one_level_with_keys(node)
    if parts is None:
        return None
    return [((jax.tree_util.keystr((key,), simple=True),), child) for key, child in parts[0]]


def named_of(leaf: Any) -> Named:
    """Return a leaf with the spec that it is sharded by."""
    spec, mesh = _own_spec(leaf)
    return Named(value=leaf, spec=spec, mesh=mesh)


# ------------------------------------------------------------------------------------------- NNX


def _parts_of_module(module: Any) -> Children:
    """Return the variables of a module; one that stands in several places is held once."""
    from flax import nnx

    flat = nnx.to_flat_state(nnx.split(module)[1])
    return [
        (tuple(map(str, path)), leaf if isinstance(leaf, nnx.Variable) else _untrained(leaf))
        for path, leaf in flat
    ]


def _untrained(leaf: Any) -> Named:
    return replace(named_of(leaf), is_trained=False)


def _unwrapped(variable: Any) -> Any:
    """Return the array of a variable with its names, or the tree that it holds in place of one."""
    from flax import nnx

    def kept(leaf: Any) -> Named:
        is_trained, is_state = (isinstance(variable, kind) for kind in (nnx.Param, nnx.OptState))
        return replace(named_of(leaf), is_trained=is_trained, is_state=is_state)

    value = variable.get_raw_value()
    if not jax.tree_util.all_leaves([value]):
        return jax.tree.map(kept, value)
    named = kept(value)
    said = variable.get_metadata()
    names = next((said[key] for key in _ANNOTATIONS if said.get(key) is not None), None)
    if named.spec is not None or names is None:
        return named
    sharding = getattr(names, "sharding", names)  # of a layout's Format
    if isinstance(sharding, NamedSharding):
        spec, mesh = _spec_and_mesh(sharding)
        return replace(named, spec=spec, mesh=mesh)
    return _annotated(named, parse_spec(sharding).entries, _rules(said.get("sharding_rules")))


def _annotated(named: Named, entries: tuple[Any, ...], rules: dict[str, Any]) -> Named:
    """Return the array with an annotation of names, each a mesh axis or a logical name.

    Which of them it is, is known when there is a mesh; where rules hold, it has been said.
    """
    axes = entries if all(isinstance(entry, str | None) for entry in entries) else None
    named = replace(named, axes=axes, flax="nnx")
    if not rules and axes is not None:
        return named
    ruled = (rules.get(entry, entry) if isinstance(entry, str) else entry for entry in entries)
    return replace(named, spec=Spec(*ruled))


def _rules(own: Any) -> dict[str, Any]:
    """Return the logical rules that hold for a variable: those around it, then its own."""
    return {**dict(rules_around()), **dict(own or ())}


# ------------------------------------------------------------------------------------------- boxes


def _is_box(node: Any) -> bool:
    """Tell whether this is an array with axis names around it, as linen keeps them."""
    meta = sys.modules.get("flax.core.meta")
    return meta is not None and isinstance(node, meta.Partitioned)


def _named_box(box: Any) -> Named:
    """Names in a box are mesh axes, but for the boxes that are for logical names."""
    if type(box).__name__ != "LogicallyPartitioned":
        return Named(value=box.value, spec=Spec(*box.names))
    if not (rules := box.rules or rules_around()):
        return Named(value=box.value, axes=tuple(box.names))
    from flax.linen import spmd

    spec = parse_spec(spmd.logical_to_mesh_axes(box.names, rules))
    return Named(value=box.value, axes=tuple(box.names), spec=spec)


# ------------------------------------------------------------------------------------------- specs


def _own_spec(value: Any) -> tuple[Spec | None, str]:
    """Return the spec that an array or a struct is sharded by, and the mesh; None where by none."""
    if isinstance(value, jax.core.Tracer):
        # Inside of a trace nothing has a place yet, but its type may, on a mesh of Explicit axes.
        sharding = getattr(jax.typeof(value), "sharding", None)
        is_told = sharding is not None and any(each is not None for each in sharding.spec)
        return _spec_and_mesh(sharding) if is_told else (None, "")
    sharding = getattr(value, "sharding", None)
    return _spec_and_mesh(sharding) if isinstance(sharding, NamedSharding) else (None, "")


def _spec_and_mesh(sharding: Any) -> tuple[Spec, str]:
    mesh = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return parse_spec(sharding.spec), mesh


# ------------------------------------------------------------------------------------------- making


def _arguments(make: Callable[..., Any]) -> Callable[[], dict[str, Any]]:
    """Return what makes the arguments: streams of random numbers, for which NNX has a name."""
    parameters = _parameters(make)
    wanted = [each.name for each in parameters if _is_rngs(each)]
    keys = [each.name for each in parameters if each.name in ("key", "rng") and _is_needed(each)]
    needed = [each.name for each in parameters if _is_needed(each)]
    if missing := [name for name in needed if name not in wanted and name not in keys]:
        name = getattr(make, "__name__", type(make).__name__)
        own = next(iter([*wanted, *keys]), "rngs")  # as NNX calls it, or Equinox
        raise InvalidModel(
            f"{name} cannot be called without {', '.join(map(repr, missing))}.",
            where=f"{name}({', '.join(map(_shown, parameters))})",
            fix=f"a function that needs no more than {own}, as in lambda {own}: {name}(..., "
            f"{own}={own}).",
        )

    def arguments() -> dict[str, Any]:
        from flax import nnx

        made = {name: nnx.Rngs(0) for name in wanted}
        return made | {name: jax.random.key(0) for name in keys}

    return arguments


def _shown(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is written, without addresses of functions that are defaults."""
    default = parameter.default
    if callable(default) and default is not parameter.empty:
        called = getattr(default, "__name__", type(default).__name__)
        return f"{parameter.name}={called}"
    return str(parameter)


def _parameters(make: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function, or of the making of a class, that are still open."""
    given = make if isinstance(make, partial) else partial(make)
    if isinstance(given.func, type):
        # A class of NNX is called through its metaclass, whose own signature says nothing.
        init = inspect.getattr_static(given.func, "__init__")
        given = partial(init, None, *given.args, **given.keywords)
    try:
        return list(inspect.signature(given).parameters.values())
    except (TypeError, ValueError):
        return []


def _is_rngs(parameter: inspect.Parameter) -> bool:
    said = parameter.annotation if isinstance(parameter.annotation, str) else ""
    said = said or getattr(parameter.annotation, "__name__", "")
    return parameter.kind is not parameter.POSITIONAL_ONLY and (
        parameter.name == "rngs" or said.rpartition(".")[2] == "Rngs"
    )


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )
