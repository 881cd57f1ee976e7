"""The index of a checkpoint in several files: which file holds which tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from shardlab.errors import BadModel
from shardlab.plans.sources.disk import read_text
from shardlab.plans.sources.json_text import JsonText

ENDING = ".safetensors.index.json"
_MAX_BYTES = 100_000_000  # as for the header of one file


@dataclass(frozen=True)
class Index:
    """The names of files by tensor, and the bytes that all of them are said to take."""

    files: dict[str, str]
    total_bytes: int | None = None

    @property
    def file_names(self) -> tuple[str, ...]:
        """Each file once, in the order of their names."""
        return tuple(sorted(set(self.files.values())))


def read_index(file: Path) -> Index:
    """Return what `model.safetensors.index.json` says."""
    text = JsonText(read_text(file, _MAX_BYTES), str(file))
    files: dict[str, str] | None = None
    total: Any = None
    for key in text.take_pairs():
        if key == "weight_map":
            files = {name: _file_name(text) for name in text.take_pairs()}
        elif key == "metadata":
            found = text.take_value()
            total = found.get("total_size") if isinstance(found, dict) else None
        else:
            text.take_value()
    text.take_end()
    if not files:
        raise BadModel(
            "The index names no tensors: 'weight_map' is missing or empty.",
            where=str(file),
            fix='{"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}.',
        )
    return Index(files, _whole(total))


def _whole(total: Any) -> int | None:
    """Return a number of bytes; some tools write it as 1.6e10."""
    if isinstance(total, float) and total.is_integer():
        return int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) else None


def _file_name(text: JsonText) -> str:
    """Take the name of a safetensors file that stands in the folder of the index, or below it."""
    start = text.position
    name = text.take_text()
    if _is_inside(name):
        return name
    raise BadModel(
        f"The index names {name!r:.200}, which is no safetensors file of its folder.",
        where=text.place(start),
        fix="names of safetensors files beside the index.",
    )


@lru_cache(maxsize=1024)  # a file holds thousands of tensors
def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/"))
    leaves = parts.is_absolute() or ".." in parts.parts or ":" in name
    return name.endswith(".safetensors") and name.isprintable() and not leaves
