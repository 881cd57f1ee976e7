"""Checkpoints written by hand in the format; their data is a sparse file that takes no disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path

NAMES = {"bf16": "BF16", "f32": "F32", "f8e4m3fn": "F8_E4M3"}


def entry(shape, start=0, dtype="BF16", width=2):
    """Return the entry of a tensor whose data begins at `start`."""
    n = width
    for size in shape:
        n *= size
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + n]}


def header_of(tensors):
    """Return the header of named shapes in bf16, one after the other, and its data's bytes."""
    actual, position = {}, 0
    for name, shape in tensors.items():
        actual[name] = entry(shape, position)
        position = actual[name]["data_offsets"][1]
    return actual, position


def write_header(file: Path, header, data_bytes=0, length=None):
    """Write a file with that header, given as a table or as bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text) if length is None else length) + text)
        opened.truncate(8 + len(text) + data_bytes)
    return file


def write_tensors(file: Path, tensors):
    """Write a file with tensors of these shapes."""
    return write_header(file, *header_of(tensors))


def write_index(folder: Path, files, total=None, **options):
    """Write files with tensors of these shapes, and their index."""
    weight_map = {}
    for name, tensors in files.items():
        write_tensors(folder / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    metadata = {} if total is None else {"metadata": {"total_size": total}}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({**metadata, "weight_map": weight_map, **options}), "utf-8")
    return index


def write_model(folder: Path, model, n_files):
    """Write a whole model in that many files, with an index."""
    tensors = [(path, tensor) for tensor in model.groups for path in tensor.paths()]
    weight_map = {}
    for number in range(n_files):
        name = f"model-{number + 1:05}-of-{n_files:05}.safetensors"
        header, position = {"__metadata__": {"format": "pt"}}, 0
        for path, tensor in tensors[number::n_files]:
            n = tensor.dtype.n_bytes(tensor.n_elements)
            header[path] = {
                "dtype": NAMES[tensor.dtype.short],
                "shape": list(tensor.shape),
                "data_offsets": [position, position + n],
            }
            position += n
            weight_map[path] = name
        write_header(folder / name, header, position)
    index = {"metadata": {"total_size": model.n_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
