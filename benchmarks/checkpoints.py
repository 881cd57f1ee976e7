"""Checkpoints of any size for benchmarks: real headers, and data that takes no room on the disk."""

from __future__ import annotations

import json
from pathlib import Path

from shardlab.planner.models.presets import load_preset

_DTYPES = {"bf16": "BF16", "f32": "F32", "f8e4m3fn": "F8_E4M3"}


def write_checkpoint(folder: Path, preset: str, n_files: int) -> int:
    """Write a preset as safetensors files with holes for data, and return their bytes."""
    parts: list[dict[str, object]] = [{} for _ in range(n_files)]
    ends = [0] * n_files
    number = 0
    for group in load_preset(preset).groups:
        n_bytes = group.dtype.n_bytes(group.n_elements)
        for path in group.paths():
            at = number % n_files
            parts[at][path] = {
                "dtype": _DTYPES[group.dtype.short],
                "shape": group.shape,
                "data_offsets": [ends[at], ends[at] + n_bytes],
            }
            ends[at] += n_bytes
            number += 1
    for at, (part, end) in enumerate(zip(parts, ends, strict=True), start=1):
        header = json.dumps(part).encode()
        with (folder / f"model-{at:05}-of-{n_files:05}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
    return sum(ends)
