"""Checkpoints of any size for benchmarks: real headers, and data as a hole in a sparse file."""

from __future__ import annotations

import json
from pathlib import Path

from shardlab.planner.models.presets import load_preset

_DTYPES = {"bf16": "BF16", "f32": "F32", "f8e4m3fn": "F8_E4M3"}


def write_checkpoint(folder: Path, preset: str, n_files: int) -> int:
    """Write a preset as safetensors files without data, and return the bytes they claim."""
    headers: list[dict[str, object]] = [{} for _ in range(n_files)]
    ends = [0] * n_files
    number = 0
    for group in load_preset(preset).groups:
        n_bytes = group.dtype.n_bytes(group.n_elements)
        for path in group.paths():
            index = number % n_files
            headers[index][path] = {
                "dtype": _DTYPES[group.dtype.short],
                "shape": group.shape,
                "data_offsets": [ends[index], ends[index] + n_bytes],
            }
            ends[index] += n_bytes
            number += 1
    for file_number, (entries, end) in enumerate(zip(headers, ends, strict=True), start=1):
        header = json.dumps(entries).encode()
        with (folder / f"model-{file_number:05}-of-{n_files:05}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            # A reader compares the file's size with the offsets; truncate() extends the file
            # without allocating blocks, so 141 GB fit on any disk.
            file.truncate(8 + len(header) + end)
    return sum(ends)
