"""Safetensors headers: the tensors of a file, and invalid headers."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc

import pytest

from planner.models.checkpoints import entry, header_of, write_header, write_tensors
from shardlab.errors import InvalidModel
from shardlab.planner.models.safetensors import DTYPES, MAX_HEADER_BYTES, read_header


def refused(file):
    with pytest.raises(InvalidModel) as raised:
        read_header(file)
    assert str(file) in raised.value.where
    assert raised.value.fix
    return raised.value


def refused_header(tmp_path, header, data_bytes=12, length=None):
    return refused(write_header(tmp_path / "m.safetensors", header, data_bytes, length))


def test_a_file_has_the_tensors_of_its_header(tmp_path):
    file = write_tensors(tmp_path / "m.safetensors", {"up": (6, 4), "scalar": (), "none": (0, 7)})
    assert [(tensor.path, tensor.shape, tensor.dtype.short) for tensor in read_header(file)] == [
        ("up", (6, 4), "bf16"),
        ("scalar", (), "bf16"),
        ("none", (0, 7), "bf16"),
    ]


# The first 480 bytes of a file that safetensors 0.8.0 wrote, by `safetensors.numpy.save`; 53 bytes
# of data follow.
WRITTEN = (
    b'\xd8\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"np","\xc3\xa9":"\\n"},'
    b'"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},'
    b'"none":{"dtype":"F64","shape":[0,5],"data_offsets":[8,8]},'
    b'"embed":{"dtype":"F32","shape":[4,1],"data_offsets":[8,24]},'
    b'"layers.10.up":{"dtype":"F16","shape":[2,3],"data_offsets":[24,36]},'
    b'"layers.9.up":{"dtype":"F16","shape":[2,3],"data_offsets":[36,48]},'
    b'"\xc3\xa9\\"q":{"dtype":"U8","shape":[3],"data_offsets":[48,51]},'
    b'"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[51,53]}}     '
)


def test_a_file_that_the_reference_implementation_wrote_is_read(tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(WRITTEN + bytes(53))
    assert {tensor.path: (tensor.dtype.name, tensor.shape) for tensor in read_header(file)} == {
        "step": ("int64", ()),
        "none": ("float64", (0, 5)),
        "embed": ("float32", (4, 1)),
        "layers.10.up": ("float16", (2, 3)),
        "layers.9.up": ("float16", (2, 3)),
        'é"q': ("uint8", (3,)),
        "mask": ("bool", (2,)),
    }


def test_order_spaces_escapes_metadata_and_further_keys_do_not_matter(tmp_path):
    header = (
        b'{ "b" : {"data_offsets" : [ 12, 16 ], "more": {"x": [1]}, "shape":[1], "dtype":"F32"},\n'
        b' "__metadata__": {"format": "pt", "note": "}{\\"\\u00e9"},\t"\\u0061\xc3\xa9": '
        b'{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]} }      '
    )
    actual = read_header(write_header(tmp_path / "m.safetensors", header, 16))
    assert [(item.path, item.shape) for item in actual] == [("b", (1,)), ("aé", (2, 3))]


def test_an_empty_model_is_a_model(tmp_path):
    assert read_header(write_header(tmp_path / "m.safetensors", b"{}")) == ()


# The names of the reference implementation (huggingface/safetensors, safetensors/src/tensor.rs and
# the table of bindings/python's torch.py), with their bits: an E4M3 there is what JAX calls e4m3fn.
MEANT = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "BF16": ("bfloat16", 16),
    "F16": ("float16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "I8": ("int8", 8),
    "I16": ("int16", 16),
    "I32": ("int32", 32),
    "I64": ("int64", 64),
    "U8": ("uint8", 8),
    "U16": ("uint16", 16),
    "U32": ("uint32", 32),
    "U64": ("uint64", 64),
}


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype_is_that_of_the_reference_and_takes_its_bits(tmp_path, name):
    ours, bits = MEANT[name]
    header = {"w": {"dtype": name, "shape": [8], "data_offsets": [0, bits]}}
    (actual,) = read_header(write_header(tmp_path / "m.safetensors", header, bits))
    assert (actual.dtype.name, actual.dtype.bits) == (ours, bits)


ENTRY = entry((2, 3))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": [True, 6]}, "The shape of tensor 'w' is [True, 6]"),
        ({"shape": [2.0, 3]}, "[2.0, 3]"),
        ({"shape": [float("nan"), 3]}, "[nan, 3]"),
        ({"shape": [float("inf"), 3]}, "[inf, 3]"),
        ({"shape": [-2, -3]}, "[-2, -3]"),
        ({"shape": ["2", 3]}, "['2', 3]"),
        ({"shape": [None]}, "[None]"),
        ({"shape": [[2, 3]]}, "[[2, 3]]"),
        ({"shape": 6}, "is 6"),
        ({"shape": "2x3"}, "is '2x3'"),
        ({"shape": {"0": 6}}, "is {'0': 6}"),
        ({"shape": [10**30, 0]}, "1000000000000000000000000000000"),
        ({"shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}, "The shape of tensor 'w'"),
        ({"shape": [2, 4]}, "takes 16 bytes, but its data_offsets are [0, 12]"),
        ({"dtype": "F31"}, "The dtype of tensor 'w' is 'F31'"),
        ({"dtype": "bf16"}, "is 'bf16'"),
        ({"dtype": 16}, "is 16"),
        ({"dtype": ["BF16"]}, "is ['BF16']"),
        ({"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}, "takes 12 bits"),
        ({"data_offsets": [12, 0]}, "The data_offsets of tensor 'w' are [12, 0]"),
        ({"data_offsets": [-12, 0]}, "are [-12, 0]"),
        ({"data_offsets": [0]}, "are [0]"),
        ({"data_offsets": [0, 6, 12]}, "are [0, 6, 12]"),
        ({"data_offsets": [0.0, 12.0]}, "are [0.0, 12.0]"),
        ({"data_offsets": [False, 12]}, "are [False, 12]"),
        ({"data_offsets": None}, "are None"),
    ],
)
def test_an_invalid_entry_is_rejected_with_its_value(tmp_path, changed, message):
    error = refused_header(tmp_path, {"w": {**ENTRY, **changed}})
    assert message in error.what
    assert "byte 14" in error.where  # after 8 bytes and {"w":


@pytest.mark.parametrize("value", [[], 3, None, "BF16", {}, {"dtype": "BF16", "shape": [1]}])
def test_an_entry_that_is_no_tensor_is_rejected(tmp_path, value):
    error = refused_header(tmp_path, {"w": value})
    assert error.what == f"Tensor 'w' is {value!r}."
    assert error.fix == "use an object with data_offsets, dtype, shape."


@pytest.mark.parametrize(
    ("header", "message", "byte"),
    [
        (b'{"w":1,"w":2}', "Tensor 'w' is 1", 13),
        (json.dumps({"w": ENTRY}).encode()[:-1] + b',"w":1}', "The key 'w' appears twice", 74),
        (b'{"w":{"dtype":"BF16","dtype":"F32"}}', "the key 'dtype' appears twice", 13),
        (b'{"w":' + b"[" * 9000 + b"}", "longer than 4,096 characters", 13),
        (b'{"w":{"shape":[' + b"9" * 4050 + b"]}}", "Tensor 'w' is {'shape'", 13),
        (b'{"w":{"shape":[1,' + b"1," * 9000 + b"1]}}", "longer than 4,096 characters", 13),
        (b'{"w":', "This is not JSON", 13),
        (b'{"w"', "':' was expected here. The text ends here", 12),
        (b'{"w', "unterminated string", 9),
        (b'{"w\\', "unterminated string", 9),
        (b'{"\\x":1}', "invalid \\escape", 10),
        (b"{,}", 'A string "..." was expected here', 9),
        (b"{1:2}", "A string", 9),
        (b"{'w':2}", "A string", 9),
        (b'{"__metadata__":[]}', "An object `{...}` was expected here", 24),
        (b'{"__metadata__":{"a":1}}', 'A string "..." was expected here', 29),
        (b'{"__metadata__":{"a":"b","a":"c"}}', "The key 'a' appears twice", 33),
        (b'{"__metadata__":{},"__metadata__":{}}', "'__metadata__' appears twice", 27),
        (b"{} x", "There is text after the end of the object. Found 'x'", 11),
        (b"{}{}", "There is text after the end", 10),
        (b"{}\x00\x00", "There is text after the end", 10),
        (b'{"\xff":1}', "not UTF-8 text", 10),
        (b'{"w":1\xc3', "not UTF-8 text", 14),
        (b'{"a\\u001bb":{}}', "has characters that cannot be printed", 20),
        (b'{"\\ud800":{}}', "has characters that cannot be printed", 18),
        (b'{"' + b"w" * 1001 + b'":{}}', "has 1,001 characters", 1013),
    ],
)
def test_a_header_that_is_no_header_is_rejected_with_its_byte(tmp_path, header, message, byte):
    error = refused_header(tmp_path, header)
    assert message in error.what
    assert error.where.endswith(f"byte {byte:,}")


def test_brackets_inside_brackets_are_rejected_at_any_depth(tmp_path):
    # how deep Python itself would follow differs from release to release
    for depth in (3, 300, 900, 1500, 2045):
        error = refused_header(tmp_path, b'{"w":' + b"[" * depth + b"]" * depth + b"}")
        assert "too many brackets" in error.what or "Tensor 'w' is [[[" in error.what
        assert error.where.endswith("byte 13")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([(0, 12), (6, 18)], "Tensor 'b' overlaps with tensor 'a'"),
        ([(0, 12), (0, 12)], "Tensor 'b' overlaps with tensor 'a'"),
        ([(0, 12), (14, 26)], "Tensor 'b' leaves a gap after tensor 'a': it begins at 14, not 12"),
        ([(2, 14), (14, 26)], "Tensor 'a' leaves a gap after the header"),
        ([(0, 12), (12, 24)], "The file has extra bytes after the last tensor"),
        ([(0, 12), (12 + 2**62, 24 + 2**62)], "leaves a gap after"),
    ],
)
def test_data_has_no_gap_and_no_tensor_in_common(tmp_path, offsets, message):
    header = {
        name: {**ENTRY, "data_offsets": list(item)}
        for name, item in zip("ab", offsets, strict=True)
    }
    error = refused_header(tmp_path, header, 25)
    assert message in error.what


def test_a_file_truncated_at_any_byte_is_rejected(tmp_path):
    file = write_tensors(tmp_path / "m.safetensors", {"up": (2, 3), "down": (3, 2)})
    full = file.read_bytes()
    assert len(read_header(file)) == 2
    for n in range(len(full)):
        file.write_bytes(full[:n])
        refused(file)
    file.write_bytes(full + b"\0")
    assert "extra bytes after the last tensor" in refused(file).what


@pytest.mark.parametrize(
    "length", [0, 1, MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, 2**31, 2**63, 2**64 - 1]
)
def test_a_length_that_a_file_only_promises_takes_no_memory(tmp_path, length):
    header, _ = header_of({"up": (2, 3)})
    file = write_header(tmp_path / "m.safetensors", header, 12, length)
    tracemalloc.start()
    try:
        error = refused(file)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert f"{length:,} bytes" in error.what
    assert ("safetensors allows 100,000,000" in error.what) == (length > 100_000_000)
    assert error.where.endswith("byte 0")


def test_a_promised_header_of_zeros_is_not_read_to_its_end(tmp_path):
    file = tmp_path / "m.safetensors"
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", MAX_HEADER_BYTES))
        opened.truncate(1 << 40)  # a hole
    tracemalloc.start()
    try:
        assert "begins with b'\\x00'" in refused(file).what
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        b'{"w":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"w":' + b"[" * 3_000_000,
        b'{"w":{"shape":[' + b"1," * 1_500_000 + b"1]}}",
        b'{"__metadata__":{' + b",".join(b'"%d":""' % n for n in range(250_000)) + b"}}",
    ],
    ids=["wide", "deep", "long shape", "much metadata"],
)
def test_a_hostile_header_of_three_megabytes_takes_few_times_its_size(tmp_path, header):
    file = write_header(tmp_path / "m.safetensors", header)
    tracemalloc.start()
    try:
        refused(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(header)
    finally:
        tracemalloc.stop()


def test_a_pointer_of_git_lfs_is_known(tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "utf-8")
    error = refused(file)
    assert error.what == "'m.safetensors' is a Git LFS pointer, not the file itself."
    assert "git lfs pull" in error.fix


def test_what_is_not_a_file_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "device"):
        error = refused(tmp_path / f"{name}.safetensors")
        assert error.what == f"'{name}.safetensors' is a folder, a pipe or a device."
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    assert "cannot be read: " in refused(tmp_path / "loop.safetensors").what
    (tmp_path / "dangling.safetensors").symlink_to("nowhere")
    assert (
        "There is no file 'dangling.safetensors'" in refused(tmp_path / "dangling.safetensors").what
    )


def test_a_link_to_a_file_is_followed(tmp_path):
    write_tensors(tmp_path / "blob", {"up": (2, 3)})  # as the cache of Hugging Face keeps them
    (tmp_path / "m.safetensors").symlink_to("blob")
    assert len(read_header(tmp_path / "m.safetensors")) == 1


def test_a_missing_file_suggests_the_nearest(tmp_path):
    write_tensors(tmp_path / "model.safetensors", {"up": (2, 3)})
    assert "'model.safetensors'" in str(refused(tmp_path / "modle.safetensors"))
    assert "There is no folder" in refused(tmp_path / "no" / "model.safetensors").what
