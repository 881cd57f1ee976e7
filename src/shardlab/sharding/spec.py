"""The spec: for each dimension of an array, the mesh axes it is sharded over.

>>> parse_spec("(data,model),None")
Spec(('data', 'model'), None)
>>> parse_spec("P(None, 'model')").axes
((), ('model',))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardlab._text.scanner import Scanner
from shardlab.errors import InvalidType, short_repr

Entry = str | tuple[str, ...] | None

_EXAMPLE = "write one entry for each dimension, such as None,model or (data,model),None."
_WRAPPERS = ("jax.sharding.PartitionSpec", "PartitionSpec", "jax.P", "P", "Spec")


@dataclass(frozen=True, init=False, repr=False)
class Spec:
    """A PartitionSpec as a plain value: `axes` has the mesh axis names of each dimension.

    >>> Spec("data", None, ("x", "y")).axes
    (('data',), (), ('x', 'y'))
    >>> Spec(("data",), ()) == Spec("data", None)
    True

    Order inside a tuple matters: the first name is the major one. Over `unreduced` mesh axes the
    devices hold partial sums; `reduced` is the mark that JAX puts on their gradients.
    """

    axes: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]
    reduced: frozenset[str]

    def __init__(
        self, *entries: Any, unreduced: Iterable[str] = (), reduced: Iterable[str] = ()
    ) -> None:
        # The dataclass is frozen, so that specs can be keys of caches; only `__init__` may write.
        set_field = object.__setattr__
        set_field(self, "axes", tuple(_entry_names(entry, entries) for entry in entries))
        set_field(self, "unreduced", frozenset(unreduced))
        set_field(self, "reduced", frozenset(reduced))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries as in a PartitionSpec: None, a name, or a tuple of names."""
        return tuple(_entry_value(names) for names in self.axes)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """All mesh axes that shard a dimension, in order of use."""
        return tuple(name for names in self.axes for name in names)

    def __len__(self) -> int:
        return len(self.axes)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __str__(self) -> str:
        """Return the spec as JAX prints it: `P(None, 'model')`."""
        # Newer JAX prints a single entry as P('data',); we always print P('data').
        return f"P({self._entries_text()})"

    def __repr__(self) -> str:
        return f"Spec({self._entries_text()})"

    def _entries_text(self) -> str:
        parts = [repr(entry) for entry in self.entries]
        for field in ("unreduced", "reduced"):
            if names := getattr(self, field):
                parts.append(f"{field}={{{', '.join(map(repr, sorted(names)))}}}")
        return ", ".join(parts)


def parse_spec(spec: Any) -> Spec:
    """Return a spec from text, a tuple or list of entries, or a PartitionSpec.

    >>> parse_spec("None,model") == parse_spec((None, "model")) == parse_spec("P(None, 'model')")
    True
    >>> parse_spec(""), parse_spec("(data,model)"), parse_spec(None)
    (Spec(), Spec(('data', 'model')), Spec())
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str):
        return _parse_spec_text(spec)
    if spec is None:
        return Spec()
    # A PartitionSpec with unreduced axes raises when it is iterated, so read its entries directly.
    entries = getattr(spec, "partitions", spec)
    if not isinstance(entries, (tuple, list)):
        raise InvalidType(
            f"{short_repr(spec)} is not a spec.",
            fix='text such as "None,model", a tuple such as (None, "model"), or a PartitionSpec.',
        )
    return Spec(
        *entries,
        unreduced=getattr(spec, "unreduced", ()),
        reduced=getattr(spec, "reduced", ()),
    )


@lru_cache(maxsize=4096)
def _parse_spec_text(source: str) -> Spec:
    # Cached: a plan parses the same few specs for thousands of tensors.
    text = Scanner(source, kind="spec")
    closing = ")" if _take_wrapper(text) else ""
    entries: list[tuple[str, ...]] = []
    while not text.at_end and not (closing and text.next_is(closing)):
        entries.append(_take_entry(text))
        if text.take(",") or text.at_end or (closing and text.next_is(closing)):
            continue
        raise text.error("',' was expected here.", fix=_EXAMPLE)
    if closing and not text.take(closing):
        raise text.error("')' was expected here.", fix=_EXAMPLE)
    if not text.at_end:
        raise text.error("The spec ends before this.", fix=_EXAMPLE)
    return Spec(*entries)


def _take_wrapper(text: Scanner) -> bool:
    """Consume `P(` or one of its longer names."""
    return any(text.take(f"{name}(") for name in _WRAPPERS)


def _take_entry(text: Scanner) -> tuple[str, ...]:
    if text.take("(") or text.take("["):
        return _take_tuple(text)
    name = text.take_name()
    if name is None:
        raise text.error("None or a mesh axis name was expected here.", fix=_EXAMPLE)
    return () if name == "None" else (name,)


def _take_tuple(text: Scanner) -> tuple[str, ...]:
    names: list[str] = []
    while not (text.take(")") or text.take("]")):
        name = text.take_name()
        if name is None:
            raise text.error("A mesh axis name or ')' was expected here.", fix=_EXAMPLE)
        # Probably a tuple of entries pasted with its own parentheses.
        if name == "None":
            raise text.error(
                "None cannot be inside parentheses, which combine mesh axes for one dimension.",
                fix="drop the outer parentheses: data,None or P('data', None).",
                back=True,
            )
        names.append(name)
        if not (text.take(",") or text.next_is(")") or text.next_is("]")):
            raise text.error("',' or ')' was expected here.", fix=_EXAMPLE)
    return tuple(names)


def _entry_names(entry: Any, entries: tuple[Any, ...]) -> tuple[str, ...]:
    if entry is None or _is_unconstrained(entry):
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, (tuple, list)) and all(isinstance(name, str) for name in entry):
        return tuple(entry)
    raise InvalidType(
        f"The spec entry {short_repr(entry)} is not None, a mesh axis name, or a tuple of names.",
        where=f"spec entries {short_repr(entries, 200)}",
        fix="None, 'data' or ('data', 'model').",
    )


def _is_unconstrained(entry: object) -> bool:
    # P.UNCONSTRAINED leaves the choice to the compiler; NamedSharding.shard_shape treats it as
    # None. Compared by type name, because this module must not import JAX.
    return type(entry).__name__ == "UnconstrainedSingleton"


def _entry_value(names: tuple[str, ...]) -> Entry:
    if not names:
        return None
    return names[0] if len(names) == 1 else names
