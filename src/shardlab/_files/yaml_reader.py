"""YAML of unknown origin, parsed in bounded time into plain values.

>>> parse_yaml("base_emb_dim: 4096  # width")
{'base_emb_dim': 4096}
>>> parse_yaml("a: 1\\na: 2")
Traceback (most recent call last):
    ...
ValueError: the key 'a' appears twice, line 2

Only the safe loader's values are built: text, numbers, lists, mappings. Anchors and tags are
rejected: nine lines of anchors that refer to each other expand to gigabytes, and a tag of Python
names code to run.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_CHARACTERS = 400_000  # a few seconds; MaxText's base.yml has 70,000
_MAX_DEPTH = 20
_PLAIN_TAGS = "tag:yaml.org,2002:"


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document; raises `ValueError` if it is invalid."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    try:
        loader = _BoundedLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(_error_text(error)) from None
    except (AttributeError, KeyError, IndexError, RecursionError, TypeError) as error:
        # Some malformed documents end in these inside PyYAML instead of in a YAMLError.
        raise ValueError(f"it is malformed ({type(error).__name__})") from None


def _error_text(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem:.200}, line {mark.line + 1}" if mark is not None else f"{problem:.200}"


class _BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """The safe loader without anchors, tags and duplicate keys, to a limited depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.n_open = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if self.check_event(yaml.AliasEvent) or event.anchor is not None:
            raise yaml.YAMLError(f"anchors (& and *) are not read, line {_line(event)}")
        tag = getattr(event, "tag", None)
        if tag is not None and not tag.startswith(_PLAIN_TAGS):
            raise yaml.YAMLError(f"the tag {tag!r:.80} is not read, line {_line(event)}")
        # Checked while composing: the parser has read no further than this node.
        self.n_open += 1
        if self.n_open > _MAX_DEPTH:
            raise yaml.YAMLError(f"more than {_MAX_DEPTH} levels of nesting, line {_line(event)}")
        node = super().compose_node(parent, index)
        self.n_open -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise yaml.YAMLError(f"a key is no text, line {_line(key_node)}")
            if key in keys:
                raise yaml.YAMLError(f"the key {key!r:.80} appears twice, line {_line(key_node)}")
            keys.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
