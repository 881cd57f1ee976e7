"""Safetensors files: the tensors of a file, read from its header alone.

The format is 8 bytes with the length of the header, the header in JSON, then the data, which is
never read: https://github.com/huggingface/safetensors#format. The header is checked against the
size of the file, so that a corrupt or malicious file is rejected before it costs memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple

from shardlab._files.bounded_read import open_regular_file, read_bounded_bytes
from shardlab._files.json_reader import JsonScanner
from shardlab.errors import InvalidModel
from shardlab.planner.tensor_group import Tensor
from shardlab.sharding.dtype import parse_dtype

# The limit of the reference implementation (MAX_HEADER_SIZE in safetensors/src/tensor.rs).
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 1_000_000  # in one file; the largest public checkpoints have 100,000 over all files
_MAX_METADATA = 10_000
_MAX_NAME = 1_000  # characters
_LENGTH_BYTES = 8  # before the header: its length, little-endian
_TOO_LARGE = 1 << 63
_KEYS = {"dtype", "shape", "data_offsets"}
# reprlib stops after a few levels; repr() would follow nested lists up to the recursion limit.
_SHORT = Repr()
_SHORT.maxstring = 80
_DOWNLOAD_AGAIN = "download it again."

# dtype in a header -> ours
DTYPES = {
    name: parse_dtype(dtype)
    for name, dtype in {
        "BOOL": "bool",
        "F4": "float4_e2m1fn",
        "F6_E2M3": "float6_e2m3fn",
        "F6_E3M2": "float6_e3m2fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "BF16": "bfloat16",
        "C64": "complex64",
        **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
        **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
        **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    }.items()
}


class _Entry(NamedTuple):
    """A tensor of a header and the range of its data, in bytes after the header."""

    tensor: Tensor
    start: int
    stop: int


def read_header(file: Path) -> tuple[Tensor, ...]:
    """Return the tensors of a file, in the order of its header."""
    with open_regular_file(file) as (opened, n_bytes):
        length = _check_header_length(read_bounded_bytes(opened, _LENGTH_BYTES), n_bytes, file)
        # Look at one byte before reading up to 100 MB of what may be another format.
        first = read_bounded_bytes(opened, 1)
        if first != b"{":
            raise InvalidModel(
                f"The header of {file.name!r} begins with {first!r} instead of '{{'.",
                where=f"{file}, byte {_LENGTH_BYTES}",
                fix="use a safetensors file.",
            )
        header = first + read_bounded_bytes(opened, length - 1)
    return parse_header(header, n_bytes - _LENGTH_BYTES - length, str(file))


def parse_header(header: bytes, data_bytes: int, where: str) -> tuple[Tensor, ...]:
    """Return the tensors of a header that is followed by `data_bytes` bytes of data.

    >>> header = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
    >>> [(tensor.path, tensor.shape) for tensor in parse_header(header, 12, "model.safetensors")]
    [('w', (2, 3))]
    """
    try:
        text = JsonScanner(header.decode("utf-8"), where, _LENGTH_BYTES)
    except UnicodeDecodeError as error:
        raise InvalidModel(
            f"The header is not UTF-8 text: {error.reason}.",
            where=f"{where}, byte {_LENGTH_BYTES + error.start:,}",
            fix="download or write the file again.",
        ) from None
    entries = list(_parse_entries(text))
    text.take_end()
    _check_offsets(entries, data_bytes, where)
    return tuple(entry.tensor for entry in entries)


def _check_header_length(prefix: bytes, n_bytes: int, file: Path) -> int:
    """Return the length of the header, if the file can have a header of that length."""
    length = int.from_bytes(prefix, "little")
    if prefix == b"version ":  # the first 8 bytes of every Git LFS pointer
        message = f"{file.name!r} is a Git LFS pointer, not the file itself."
        fix = "run `git lfs pull` in its folder."
    elif len(prefix) < _LENGTH_BYTES:
        message = f"{file.name!r} ends after {n_bytes} bytes; the length of the header takes 8."
        fix = _DOWNLOAD_AGAIN
    elif length > MAX_HEADER_BYTES:
        message = (
            f"{file.name!r} declares a header of {length:,} bytes; "
            f"safetensors allows {MAX_HEADER_BYTES:,}."
        )
        fix = "use a safetensors file; this is another format, or corrupt."
    elif length < 2:
        message = f"{file.name!r} declares a header of {length} bytes; an empty one takes 2."
        fix = "use a safetensors file; this is another format, or corrupt."
    elif length > n_bytes - _LENGTH_BYTES:
        message = (
            f"{file.name!r} declares a header of {length:,} bytes, "
            f"but only {n_bytes - _LENGTH_BYTES:,} follow."
        )
        fix = _DOWNLOAD_AGAIN
    else:
        return length
    raise InvalidModel(message, where=f"{file}, byte 0", fix=fix)


def _parse_entries(text: JsonScanner) -> Iterator[_Entry]:
    for name in text.take_pairs(MAX_TENSORS):
        start = text.position
        if name == "__metadata__":  # the format allows only text there
            for _ in text.take_pairs(_MAX_METADATA):
                text.take_text()
        else:
            yield _parse_entry(name, text.take_value(), text, start)


def _parse_entry(name: str, value: Any, text: JsonScanner, start: int) -> _Entry:
    """Return the entry of a tensor, or raise with what is wrong."""

    def error(message: str, fix: str) -> InvalidModel:
        return InvalidModel(message, where=text.position_text(start), fix=fix)

    if len(name) > _MAX_NAME or not name.isprintable():
        reason = (
            f"has {len(name):,} characters"
            if name.isprintable()
            else "has characters that cannot be printed"
        )
        raise error(f"The tensor name {name!r:.80} {reason}.", "use a plain name.")
    if not isinstance(value, dict) or not value.keys() >= _KEYS:
        raise error(
            f"Tensor {name!r} is {_SHORT.repr(value)}.",
            f"use an object with {', '.join(sorted(_KEYS))}.",
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise error(
            f"The dtype of tensor {name!r} is {_SHORT.repr(dtype)}.",
            f"use one of {', '.join(DTYPES)}.",
        )
    if not _are_sizes(shape) or prod(filter(None, shape)) >= _TOO_LARGE:
        raise error(
            f"The shape of tensor {name!r} is {_SHORT.repr(shape)}.",
            "use sizes such as [4096, 1024], with less than 2**63 elements.",
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise error(
            f"The data_offsets of tensor {name!r} are {_SHORT.repr(offsets)}.",
            "use the start and end of its data, such as [0, 8192].",
        )
    tensor = Tensor(name, tuple(shape), DTYPES[dtype])
    # In bits: elements of 4 and 6 bits are packed, and a tensor must fill whole bytes.
    if prod(shape) * tensor.dtype.bits != 8 * (offsets[1] - offsets[0]):
        raise error(
            f"Tensor {name!r} with shape {_SHORT.repr(shape)} and dtype {dtype} takes "
            f"{_tensor_size_text(tensor)}, but its data_offsets are {offsets}.",
            "write the file again.",
        )
    return _Entry(tensor, *offsets)


def _are_sizes(values: Any) -> bool:
    # By exact type: a JSON true is an int to isinstance.
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= 0 and max(values) < _TOO_LARGE)


def _tensor_size_text(tensor: Tensor) -> str:
    n_bits = prod(tensor.shape) * tensor.dtype.bits
    return f"{n_bits // 8:,} bytes" if n_bits % 8 == 0 else f"{n_bits:,} bits"


def _check_offsets(entries: Sequence[_Entry], data_bytes: int, where: str) -> None:
    """Raise if tensors overlap, leave a gap, or do not end where the file does.

    The format forbids gaps, so that no other content can be hidden in a file.
    """
    end, previous = 0, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        name = entry.tensor.path
        if entry.start != end:
            problem = "leaves a gap after" if entry.start > end else "overlaps with"
            raise InvalidModel(
                f"Tensor {name!r} {problem} {previous}: it begins at {entry.start:,}, not {end:,}.",
                where=f"{where}, data_offsets of {name!r}",
                fix="download or write the file again.",
            )
        end, previous = entry.stop, f"tensor {name!r}"
    if end != data_bytes:
        problem = "is truncated" if end > data_bytes else "has extra bytes after the last tensor"
        raise InvalidModel(
            f"The file {problem}: its tensors take {end:,} bytes, and {data_bytes:,} follow the "
            "header.",
            where=f"{where}, after {previous}",
            fix=_DOWNLOAD_AGAIN,
        )
