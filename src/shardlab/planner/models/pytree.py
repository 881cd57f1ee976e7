"""Tensors of a pytree: nested dicts, lists, tuples and dataclasses of arrays, or of their shapes.

>>> class Array:
...     shape, dtype = (8, 4), "bf16"
>>> [each.path for each in iterate_tensors({"layers": [{"kernel": Array()}, {"kernel": Array()}]})]
['layers/0/kernel', 'layers/1/kernel']

Whatever else JAX takes for a pytree, and models of Flax, are taken apart by JAX itself, which must
have been imported for such an object to exist: nothing here imports it for plain containers.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from operator import index
from typing import Any, NamedTuple

from shardlab.errors import InvalidModel, LabError
from shardlab.planner.tensor_group import LogicalAxes, Tensor, group_tensors
from shardlab.planner.model import Model
from shardlab.planner.models.jax_model import Children, Key, Named
from shardlab.planner.models.optimizer_state import mark_untrained
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.spec import Spec

MOST_DEPTH = 200  # containers inside one another: no model is as deep, and JAX dies on deeper ones
MOST_NODES = 4_000_000  # a list that holds another twice, forty deep, is a billion lists to a walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """What stands in a place of a tree: a tensor, or the kind of thing that is none."""

    path: str
    kind: str
    tensor: Tensor | None = None
    mesh: str = ""  # that its own spec is for
    flax: str = ""  # whose axis names it has


class Around(NamedTuple):
    """A container on the way to a leaf: its key, who it is, and what its type says of its parts."""

    key: Key
    who: int
    mark: str


def model_from_pytree(tree: Any, name: str = "") -> Model:
    """Return the model of a pytree, an NNX model, or a function or class that makes one of them."""
    leaves = _leaves(tree)
    tensors = mark_untrained(leaf.tensor for leaf in leaves if leaf.tensor)
    others = [leaf for leaf in leaves if not leaf.tensor]
    name = name or _name(tree)
    if not tensors:
        raise _no_arrays(tree, name, others)
    meshes = {leaf.mesh for leaf in leaves if leaf.mesh}
    return Model(
        name=name,
        groups=group_tensors(tensors),
        source=_source(tree),
        notes=(f"Not counted, being no arrays: {_listed(others)}.",) if others else (),
        details={
            **({"mesh": meshes.pop()} if len(meshes) == 1 else {}),
            **({"names": "nnx"} if any(leaf.flax == "nnx" for leaf in leaves) else {}),
        },
    )


def iterate_tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a pytree in its own order; what is no array is left out."""
    return (leaf.tensor for leaf in _walk(tree) if leaf.tensor)


def _leaves(tree: Any) -> list[Leaf]:
    if not callable(tree) or _is_array(tree) or _children(tree) is not None:
        return list(_walk(tree))
    from shardlab.planner.models.jax_model import look_at_made

    found: list[Leaf] = look_at_made(tree, lambda made: list(_walk(made)))
    return found


# ------------------------------------------------------------------------------------- the walk


def _walk(tree: Any) -> Iterator[Leaf]:
    """Go through a tree without calling ourselves, so that depth ends in words, not in a crash."""
    levels: list[Iterator[tuple[Key, Any]]] = [iter([((), tree)])]  # what is left of each
    way: list[Around] = []  # the containers around these
    n_nodes = 0
    while levels:
        following = next(levels[-1], None)
        if following is None:
            levels.pop()
            del way[len(levels) - 1 :]
            continue
        key, node = following
        n_nodes += 1
        path = "/".join((*(part for above in way for part in above.key), *key))
        children = _children(node, path)
        if children is not None:
            _check_way(node, path, way, n_nodes)
            way.append(Around(key, id(node), _mark(node) or (way[-1].mark if way else "")))
            levels.append(iter(children))
        elif node is not None:
            yield _leaf(path, node, way[-1].mark if way else "")


def _mark(node: Any) -> str:
    """Return what its type says of a container: an optimizer's state, or one that is held."""
    home = type(node).__module__.partition(".")[0]
    if home == "optax" and hasattr(node, "_fields"):
        return "state"
    return "held" if home == "equinox" and type(node).__name__ == "State" else ""


def _check_way(node: Any, path: str, way: list[Around], n_nodes: int) -> None:
    shown = path if len(path) <= 200 else f"{path[:20]}…{path[-20:]}"
    where = f"the {type(node).__name__} at {shown!r}"
    if any(id(node) == each.who for each in way):
        what = f"The pytree holds itself: at {shown!r} stands a container that this is part of."
        raise InvalidModel(what, where=where, fix="a tree, in which no container holds itself.")
    if len(way) >= MOST_DEPTH:
        what = f"The pytree has more than {MOST_DEPTH} containers inside one another."
        raise InvalidModel(what, where=where, fix="a flatter tree: JAX cannot walk so deep a one.")
    if n_nodes > MOST_NODES:
        what = f"The pytree has more than {MOST_NODES:,} nodes."
        fix = "a smaller tree; a container that stands in several places counts in each."
        raise InvalidModel(what, where=where, fix=fix)


def _children(node: Any, path: str = "") -> Children | None:
    """Return the parts of a container with their keys; None for a leaf."""
    if isinstance(node, dict):
        return [((str(key),), value) for key, value in node.items()]
    if isinstance(node, (list, tuple)):
        names = getattr(node, "_fields", None) or map(str, range(len(node)))
        return [((str(name),), value) for name, value in zip(names, node, strict=True)]
    if node is None or isinstance(node, (str, bytes, int, float, complex, type, Named)):
        return None
    if "jax" in sys.modules and (found := _asked_of_jax(node, path)) is not None:
        return found
    if isinstance(node, Mapping):
        return [((str(key),), node[key]) for key in node]
    if dataclasses.is_dataclass(node) and not _is_array(node):
        return [((field.name,), getattr(node, field.name)) for field in dataclasses.fields(node)]
    return None


def _asked_of_jax(node: Any, path: str) -> Children | None:
    from shardlab.planner.models.jax_model import children_of

    try:
        return children_of(node)
    except InvalidModel:
        raise
    except Exception as error:  # it is taken apart by what its author wrote
        said = error.what if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        raise InvalidModel(
            f"The {type(node).__name__} at {path!r:.200} cannot be taken apart: {said:.300}",
            where=f"{path!r:.200}",
            fix="a pytree that jax.tree.leaves can go through.",
        ) from error


# ------------------------------------------------------------------------------------- a leaf


def _leaf(path: str, node: Any, mark: str) -> Leaf:
    named = _named(node)
    if not _is_array(named.value):
        return Leaf(path=path, kind=_kind(named.value))
    try:
        shape = tuple(map(index, named.value.shape))
        if min(shape, default=0) < 0:
            raise ValueError(f"a size of {min(shape)}")
        dtype = parse_dtype(named.value.dtype)
    except (LabError, TypeError, ValueError) as error:
        said = error.what if isinstance(error, LabError) else f"its shape: {error!s:.200}"
        raise InvalidModel(
            f"The array at {path!r:.200} cannot be read: {said}",
            where=f"{path!r:.200}",
            fix="an array with a shape of whole numbers and a dtype that JAX has.",
        ) from None
    is_state = named.is_optimizer_state or mark == "state"
    is_trained = named.is_trained and not mark
    tensor = Tensor(path, shape, dtype, *_fitted(named, len(shape)), is_trained, is_state)
    return Leaf(path=path, kind="array", tensor=tensor, mesh=named.mesh, flax=named.flax)


def _fitted(named: Named, rank: int) -> tuple[LogicalAxes | None, Spec | None]:
    """Return a name for each array axis; too many of them are left as a spec, to be refused."""
    axes = named.axes
    if axes is None or len(axes) <= rank:
        return axes and (*axes, *(None,) * (rank - len(axes))), named.spec
    return None, named.spec or Spec(*axes)


def _named(node: Any) -> Named:
    if isinstance(node, Named):
        return node
    if "jax" not in sys.modules:
        return Named(value=node)
    from shardlab.planner.models.jax_model import named_of

    return named_of(node)


def _is_array(thing: Any) -> bool:
    try:
        return hasattr(thing, "shape") and hasattr(thing, "dtype") and not isinstance(thing, type)
    except Exception:  # of a property that its author wrote
        return False


def _kind(thing: Any) -> str:
    return "function" if callable(thing) else type(thing).__name__


# ------------------------------------------------------------------------------------- words


def _listed(others: list[Leaf]) -> str:
    shown = [f"{leaf.path or 'the whole'} ({leaf.kind})" for leaf in others[:3]]
    more = [f"{len(others) - 3:,} more"] if len(others) > 3 else []
    return ", ".join([*shown, *more])[:400]


def _no_arrays(tree: Any, name: str, others: list[Leaf]) -> InvalidModel:
    fix = (
        "a pytree of arrays or of jax.ShapeDtypeStruct, an NNX model, or a function that makes one."
    )
    if any(kind.__module__.startswith("flax.linen") for kind in type(tree).__mro__):
        fix = "the tree that jax.eval_shape(model.init, key, inputs) returns: a linen model has "
        fix += "no parameters of its own."
    return InvalidModel(
        f"There is no array in {name}{': ' + _listed(others) if others else ''}.", fix=fix
    )


def _name(tree: Any) -> str:
    if isinstance(tree, (dict, list, tuple)) and not hasattr(tree, "_fields"):
        return "pytree"
    tree = tree.func if isinstance(tree, partial) else tree
    return str(getattr(tree, "__name__", type(tree).__name__)).replace("<lambda>", "model")


def _source(tree: Any) -> str:
    kind = tree if isinstance(tree, type) else type(tree)
    if callable(tree) and not isinstance(tree, type) and hasattr(tree, "__code__"):
        return f"what {tree.__module__}.{tree.__qualname__} makes, never allocated"
    return f"a pytree: {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
