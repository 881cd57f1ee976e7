"""Tensors of a pytree: nested dicts, lists, tuples and dataclasses of arrays, or of their shapes.

>>> class Array:
...     shape, dtype = (8, 4), "bf16"
>>> tree = {"layers": [{"kernel": Array()}, {"kernel": Array()}]}
>>> [tensor.path for tensor in iterate_tensors(tree)]
['layers/0/kernel', 'layers/1/kernel']

Other pytrees of JAX and models of Flax are flattened by JAX itself (`jax_model`). JAX must have
been imported for such an object to exist, so nothing here imports it for plain containers.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from operator import index
from typing import Any, Literal, NamedTuple

from shardlab.errors import InvalidModel, LabError
from shardlab.planner.model import Model
from shardlab.planner.models.optimizer_state import mark_untrained
from shardlab.planner.tensor_group import LogicalAxes, Tensor, group_tensors
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.spec import Spec

MAX_DEPTH = 200  # nested containers: no model is that deep, and JAX overflows the stack on more
MAX_NODES = 4_000_000  # a list that holds another one twice, forty levels deep, has 2**40 nodes

Key = tuple[str, ...]
Children = list[tuple[Key, Any]]
Marker = Literal["", "optimizer_state", "untrained"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotatedLeaf:
    """A leaf with the annotations of its author: axis names, spec, and the mesh of the spec."""

    value: Any
    axes: LogicalAxes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    mesh: str = ""
    is_optimizer_state: bool = False
    flax_api: str = ""  # "nnx" if the axis names follow NNX's semantics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf of a tree: a tensor, or the kind of another object."""

    path: str
    kind: str
    tensor: Tensor | None = None
    mesh: str = ""  # of its own spec
    flax_api: str = ""


class _Ancestor(NamedTuple):
    """A container around a leaf: its key, its identity, and what its type says of its leaves."""

    key: Key
    identity: int
    marker: Marker


def model_from_pytree(tree: Any, name: str = "") -> Model:
    """Return the model of a pytree, an NNX model, or a function or class that returns one."""
    leaves = _collect_leaves(tree)
    tensors = mark_untrained(leaf.tensor for leaf in leaves if leaf.tensor)
    other_leaves = [leaf for leaf in leaves if not leaf.tensor]
    name = name or _tree_name(tree)
    if not tensors:
        raise _no_arrays_error(tree, name, other_leaves)
    meshes = {leaf.mesh for leaf in leaves if leaf.mesh}
    notes = (f"Not counted because they are not arrays: {_leaves_text(other_leaves)}.",)
    return Model(
        name=name,
        groups=group_tensors(tensors),
        source=_tree_source(tree),
        notes=notes if other_leaves else (),
        details={
            **({"mesh": meshes.pop()} if len(meshes) == 1 else {}),
            **({"names": "nnx"} if any(leaf.flax_api == "nnx" for leaf in leaves) else {}),
        },
    )


def iterate_tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a pytree in its own order; other leaves are skipped."""
    return (leaf.tensor for leaf in _walk_tree(tree) if leaf.tensor)


def _collect_leaves(tree: Any) -> list[Leaf]:
    if not callable(tree) or _is_array(tree) or _find_children(tree) is not None:
        return list(_walk_tree(tree))
    from shardlab.planner.models.jax_model import inspect_abstract_model

    leaves: list[Leaf] = inspect_abstract_model(tree, lambda model: list(_walk_tree(model)))
    return leaves


# ------------------------------------------------------------------------------------- the walk


def _walk_tree(tree: Any) -> Iterator[Leaf]:
    """Yield the leaves of a tree."""
    # Without recursion: a tree that is too deep must end in an error, not in a stack overflow.
    levels: list[Iterator[tuple[Key, Any]]] = [iter([((), tree)])]  # remaining nodes per level
    ancestors: list[_Ancestor] = []
    n_nodes = 0
    while levels:
        following = next(levels[-1], None)
        if following is None:
            levels.pop()
            del ancestors[len(levels) - 1 :]
            continue
        key, node = following
        n_nodes += 1
        path = "/".join((*(part for ancestor in ancestors for part in ancestor.key), *key))
        marker = ancestors[-1].marker if ancestors else ""
        children = _find_children(node, path)
        if children is not None:
            _check_tree_limits(node, path, ancestors, n_nodes)
            ancestors.append(_Ancestor(key, id(node), _container_marker(node) or marker))
            levels.append(iter(children))
        elif node is not None:
            yield _build_leaf(path, node, marker)


def _container_marker(node: Any) -> Marker:
    """Return what the type of a container says of its leaves: an optimizer state, or untrained."""
    package = type(node).__module__.partition(".")[0]
    if package == "optax" and hasattr(node, "_fields"):
        return "optimizer_state"
    return "untrained" if package == "equinox" and type(node).__name__ == "State" else ""


def _check_tree_limits(node: Any, path: str, ancestors: list[_Ancestor], n_nodes: int) -> None:
    short_path = path if len(path) <= 200 else f"{path[:20]}…{path[-20:]}"
    where = f"the {type(node).__name__} at {short_path!r}"
    if any(id(node) == ancestor.identity for ancestor in ancestors):
        raise InvalidModel(
            f"The pytree contains itself: the container at {short_path!r} is one of its own "
            "ancestors.",
            where=where,
            fix="use a tree in which no container contains itself.",
        )
    if len(ancestors) >= MAX_DEPTH:
        raise InvalidModel(
            f"The pytree has more than {MAX_DEPTH} nested containers.",
            where=where,
            fix="use a flatter tree: JAX cannot flatten one that deep.",
        )
    if n_nodes > MAX_NODES:
        raise InvalidModel(
            f"The pytree has more than {MAX_NODES:,} nodes.",
            where=where,
            fix="use a smaller tree; a container that is in several places counts in each.",
        )


def _find_children(node: Any, path: str = "") -> Children | None:
    """Return the children of a container with their keys; None for a leaf."""
    if isinstance(node, dict):
        return [((str(key),), value) for key, value in node.items()]
    if isinstance(node, (list, tuple)):
        names = getattr(node, "_fields", None) or map(str, range(len(node)))
        return [((str(name),), value) for name, value in zip(names, node, strict=True)]
    if node is None or isinstance(node, (str, bytes, int, float, complex, type, AnnotatedLeaf)):
        return None
    if "jax" in sys.modules and (children := _find_jax_children(node, path)) is not None:
        return children
    if isinstance(node, Mapping):
        return [((str(key),), node[key]) for key in node]
    if dataclasses.is_dataclass(node) and not _is_array(node):
        return [((field.name,), getattr(node, field.name)) for field in dataclasses.fields(node)]
    return None


def _find_jax_children(node: Any, path: str) -> Children | None:
    from shardlab.planner.models.jax_model import flatten_one_level

    try:
        return flatten_one_level(node)
    except InvalidModel:
        raise
    except Exception as error:  # the flatten function of a registered class is the user's code
        reason = error.what if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        raise InvalidModel(
            f"The {type(node).__name__} at {path!r:.200} cannot be flattened: {reason:.300}",
            where=f"{path!r:.200}",
            fix="use a pytree that jax.tree.leaves can flatten.",
        ) from error


# ------------------------------------------------------------------------------------- a leaf


def _build_leaf(path: str, node: Any, marker: Marker) -> Leaf:
    leaf = _annotate_leaf(node)
    if not _is_array(leaf.value):
        return Leaf(path=path, kind=_kind_name(leaf.value))
    try:
        shape = tuple(map(index, leaf.value.shape))
        if min(shape, default=0) < 0:
            raise ValueError(f"a size of {min(shape)}")
        dtype = parse_dtype(leaf.value.dtype)
    except (LabError, TypeError, ValueError) as error:
        reason = error.what if isinstance(error, LabError) else f"its shape: {error!s:.200}"
        raise InvalidModel(
            f"The array at {path!r:.200} is invalid: {reason}",
            where=f"{path!r:.200}",
            fix="use an array with a shape of whole numbers and a dtype that JAX has.",
        ) from None
    axes, spec = _fit_axes(leaf, len(shape))
    tensor = Tensor(
        path=path,
        shape=shape,
        dtype=dtype,
        axes=axes,
        spec=spec,
        is_trained=leaf.is_trained and not marker,
        is_optimizer_state=leaf.is_optimizer_state or marker == "optimizer_state",
    )
    return Leaf(path=path, kind="array", tensor=tensor, mesh=leaf.mesh, flax_api=leaf.flax_api)


def _fit_axes(leaf: AnnotatedLeaf, rank: int) -> tuple[LogicalAxes | None, Spec | None]:
    """Return one axis name for each dimension."""
    axes = leaf.axes
    if axes is None or len(axes) <= rank:
        return axes and (*axes, *(None,) * (rank - len(axes))), leaf.spec
    # Too many names become a spec, which lint then reports as invalid.
    return None, leaf.spec or Spec(*axes)


def _annotate_leaf(node: Any) -> AnnotatedLeaf:
    if isinstance(node, AnnotatedLeaf):
        return node
    if "jax" not in sys.modules:
        return AnnotatedLeaf(value=node)
    from shardlab.planner.models.jax_model import annotate_array

    return annotate_array(node)


def _is_array(value: Any) -> bool:
    try:
        return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)
    except Exception:  # hasattr runs properties, which are the user's code
        return False


def _kind_name(value: Any) -> str:
    return "function" if callable(value) else type(value).__name__


# ------------------------------------------------------------------------------------- messages


def _leaves_text(leaves: list[Leaf]) -> str:
    names = [f"{leaf.path or 'the root'} ({leaf.kind})" for leaf in leaves[:3]]
    rest = [f"{len(leaves) - 3:,} more"] if len(leaves) > 3 else []
    return ", ".join([*names, *rest])[:400]


def _no_arrays_error(tree: Any, name: str, other_leaves: list[Leaf]) -> InvalidModel:
    fix = (
        "use a pytree of arrays or of jax.ShapeDtypeStruct, an NNX model, or a function that "
        "returns one."
    )
    if any(kind.__module__.startswith("flax.linen") for kind in type(tree).__mro__):
        fix = (
            "use the tree that jax.eval_shape(model.init, key, inputs) returns: a linen model has "
            "no parameters of its own."
        )
    contents = f": {_leaves_text(other_leaves)}" if other_leaves else ""
    return InvalidModel(f"There is no array in {name}{contents}.", fix=fix)


def _tree_name(tree: Any) -> str:
    if isinstance(tree, (dict, list, tuple)) and not hasattr(tree, "_fields"):
        return "pytree"
    tree = tree.func if isinstance(tree, partial) else tree
    return str(getattr(tree, "__name__", type(tree).__name__)).replace("<lambda>", "model")


def _tree_source(tree: Any) -> str:
    kind = tree if isinstance(tree, type) else type(tree)
    if callable(tree) and not isinstance(tree, type) and hasattr(tree, "__code__"):
        return f"the result of {tree.__module__}.{tree.__qualname__}, never allocated"
    return f"a pytree: {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
