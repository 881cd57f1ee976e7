"""A safetensors file: which tensors it holds, by its header alone.

The format is 8 bytes with the length of the header, the header in JSON, then the data, which is
never read: https://github.com/huggingface/safetensors#format. What the header says is held
against the size of the file, so that a broken or hostile one is refused before it costs memory.
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

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_TENSORS = 1_000_000  # in one file; the largest public checkpoints have a tenth, in all files
_MAX_METADATA = 10_000
_MAX_NAME = 1_000  # characters
_N_LENGTH = 8  # bytes before the header
_TOO_LARGE = 1 << 63
_KEYS = {"dtype", "shape", "data_offsets"}
_SHOWN = Repr()  # stops at a few levels; Python's own would follow lists in lists to its limit
_SHOWN.maxstring = 80

# name in a header -> ours
DTYPES = {
    name: parse_dtype(ours)
    for name, ours in {
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
    """A tensor of a header and where its data stands, in bytes after the header."""

    tensor: Tensor
    start: int
    stop: int


def read_header(file: Path) -> tuple[Tensor, ...]:
    """Return the tensors that a file holds, in the order of its header."""
    with open_regular_file(file) as (opened, n_bytes):
        length = _header_length(read_bounded_bytes(opened, _N_LENGTH), n_bytes, file)
        first = read_bounded_bytes(opened, 1)
        if first != b"{":
            raise InvalidModel(
                f"The header of {file.name!r} begins with {first!r}, and not with a table.",
                where=f"{file}, byte {_N_LENGTH}",
                fix="a safetensors file.",
            )
        header = first + read_bounded_bytes(opened, length - 1)
    return parse_header(header, n_bytes - _N_LENGTH - length, str(file))


def parse_header(header: bytes, data_bytes: int, where: str) -> tuple[Tensor, ...]:
    """Return the tensors of a header whose data takes so many bytes.

    >>> header = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
    >>> [(each.path, each.shape) for each in parse_header(header, 12, "model.safetensors")]
    [('w', (2, 3))]
    """
    try:
        text = JsonScanner(header.decode("utf-8"), where, _N_LENGTH)
    except UnicodeDecodeError as error:
        raise InvalidModel(
            f"The header is not UTF-8 text: {error.reason}.",
            where=f"{where}, byte {_N_LENGTH + error.start:,}",
            fix="download or write the file again.",
        ) from None
    entries = list(_entries(text))
    text.take_end()
    _check_offsets(entries, data_bytes, where)
    return tuple(each.tensor for each in entries)


def _header_length(start: bytes, n_bytes: int, file: Path) -> int:
    """Return the length of the header, if the file can have one of that length."""
    length = int.from_bytes(start, "little")
    if start == b"version ":
        what = f"{file.name!r} is a pointer of Git LFS, not the file itself."
        fix = "`git lfs pull` in its folder."
    elif len(start) < _N_LENGTH:
        what = f"{file.name!r} ends after {n_bytes} bytes; a header's length alone takes 8."
        fix = "download it again."
    elif length > MAX_HEADER_BYTES:
        what = (
            f"{file.name!r} says that its header has {length:,} bytes; "
            f"safetensors allows {MAX_HEADER_BYTES:,}."
        )
        fix = "a safetensors file; this is another format, or damaged."
    elif length < 2:
        what = f"{file.name!r} says that its header has {length} bytes; an empty one takes 2."
        fix = "a safetensors file; this is another format, or damaged."
    elif length > n_bytes - _N_LENGTH:
        what = (
            f"{file.name!r} says that its header has {length:,} bytes, "
            f"and {n_bytes - _N_LENGTH:,} follow."
        )
        fix = "download it again."
    else:
        return length
    raise InvalidModel(what, where=f"{file}, byte 0", fix=fix)


def _entries(text: JsonScanner) -> Iterator[_Entry]:
    for name in text.take_pairs(MAX_TENSORS):
        start = text.position
        if name == "__metadata__":
            for _ in text.take_pairs(_MAX_METADATA):
                text.take_text()
        else:
            yield _entry(name, text.take_value(), text, start)


def _entry(name: str, found: Any, text: JsonScanner, start: int) -> _Entry:
    """Return the entry of a tensor, or say what is wrong with it."""
    if len(name) > _MAX_NAME or not name.isprintable():
        why = (
            f"has {len(name):,} characters"
            if name.isprintable()
            else "has characters that cannot be printed"
        )
        raise _bad(f"The name of a tensor, {name!r:.80}, {why}.", text, start, "a plain name.")
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        what = f"Tensor {name!r} is {_SHOWN.repr(found)}."
        raise _bad(what, text, start, f"a table with {', '.join(sorted(_KEYS))}.")
    dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        what = f"The dtype of tensor {name!r} is {_SHOWN.repr(dtype)}."
        raise _bad(what, text, start, f"one of {', '.join(DTYPES)}.")
    if not _are_sizes(shape) or prod(filter(None, shape)) >= _TOO_LARGE:
        what = f"The shape of tensor {name!r} is {_SHOWN.repr(shape)}."
        raise _bad(what, text, start, "sizes such as [4096, 1024], of less than 2**63 elements.")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        what = f"The data_offsets of tensor {name!r} are {_SHOWN.repr(offsets)}."
        raise _bad(what, text, start, "where its data begins and ends, such as [0, 8192].")
    tensor = Tensor(name, tuple(shape), DTYPES[dtype])
    if prod(shape) * tensor.dtype.bits != 8 * (offsets[1] - offsets[0]):
        needs = f"shape {_SHOWN.repr(shape)} and dtype {dtype}, which take {_amount(tensor)}"
        what = f"Tensor {name!r} has {needs}; its data_offsets are {offsets}."
        raise _bad(what, text, start, "write the file again.")
    return _Entry(tensor, *offsets)


def _bad(what: str, text: JsonScanner, start: int, fix: str) -> InvalidModel:
    return InvalidModel(what, where=text.place(start), fix=fix)


def _are_sizes(found: Any) -> bool:
    if not isinstance(found, list) or not set(map(type, found)) <= {int}:  # nor a bool
        return False
    return not found or (min(found) >= 0 and max(found) < _TOO_LARGE)


def _amount(tensor: Tensor) -> str:
    n_bits = prod(tensor.shape) * tensor.dtype.bits
    return f"{n_bits // 8:,} bytes" if n_bits % 8 == 0 else f"{n_bits:,} bits"


def _check_offsets(entries: Sequence[_Entry], data_bytes: int, where: str) -> None:
    """Raise where tensors overlap, leave a gap, or do not end where the file does."""
    end, before = 0, "the header"
    for each in sorted(entries, key=lambda each: (each.start, each.stop)):
        name = each.tensor.path
        if each.start != end:
            said = "a gap after" if each.start > end else "data in common with"
            raise InvalidModel(
                f"Tensor {name!r} has {said} {before}: it begins at {each.start:,}, not {end:,}.",
                where=f"{where}, data_offsets of {name!r}",
                fix="download or write the file again.",
            )
        end, before = each.stop, f"tensor {name!r}"
    if end != data_bytes:
        said = "is cut off" if end > data_bytes else "has something after the last tensor"
        raise InvalidModel(
            f"The file {said}: tensors take {end:,} bytes, and {data_bytes:,} follow the header.",
            where=f"{where}, after {before}",
            fix="download it again.",
        )
