"""The list of presets: each model that can be planned by name, with its measures."""

from __future__ import annotations

from collections.abc import Iterable

from shardlab._text.units import bytes_text
from shardlab.render.sheet import Column, Row, Section, Sheet, Table


def presets_sheet(presets: Iterable[tuple[str, int, int, int, str]]) -> Sheet:
    """Return the table of presets: name, parameters, bytes, tensors, and measures in words."""
    rows = tuple(
        Row((name, f"{parameters:,}", bytes_text(n_bytes), f"{tensors:,}", words))
        for name, parameters, n_bytes, tensors, words in presets
    )
    columns = (
        Column("model"),
        Column("parameters", True),
        Column("checkpoint", True),
        Column("tensors", True, drop=2),
        Column("", drop=1),
    )
    return Sheet("", (), (Section("Presets", Table(columns, rows)),))
