"""The list of presets: every model that can be planned by name, with its size."""

from __future__ import annotations

from collections.abc import Iterable

from shardlab._text.units import bytes_text
from shardlab.render.sheet import Column, Row, Section, Sheet, Table


def presets_sheet(presets: Iterable[tuple[str, int, int, int, str]]) -> Sheet:
    """Return the table of presets: name, parameters, bytes, tensors, and a description."""
    rows = tuple(
        Row(cells=(name, f"{n_parameters:,}", bytes_text(n_bytes), f"{n_tensors:,}", description))
        for name, n_parameters, n_bytes, n_tensors, description in presets
    )
    columns = (
        Column(head="model"),
        Column(head="parameters", is_number=True),
        Column(head="checkpoint", is_number=True),
        Column(head="tensors", is_number=True, drop=2),
        Column(head="", drop=1),
    )
    return Sheet("", (), (Section("Presets", Table(columns, rows)),))
