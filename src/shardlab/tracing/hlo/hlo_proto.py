"""A compiled module from XLA's protocol buffer: what no name or attribute of a program can forge.

XLA's text is not safe to parse if the program is hostile: names of scopes and values of frontend
attributes are printed into it, some of them with line breaks and braces. In the serialized
`HloModuleProto` each of them is a string with a length. The result is the same `Module` as that of
the text, with the attributes that the structure needs and no others, written here from numbers.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from shardlab.tracing.hlo.hlo_module import Computation, Instruction, Module
from shardlab.tracing.hlo.replica_groups import Groups, groups_along_axes, iota_order, split_devices
from shardlab.tracing.hlo.stack_frames import StackFrameTables


class InvalidModule(Exception):
    """Bytes that are no module of XLA, or one with another number of entries than one."""


# ------------------------------------------------------------------------------- the wire format

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}


class Message:
    """The fields of one message: field number -> its values, integers or bytes, in order."""

    def __init__(self, data: bytes) -> None:
        self._fields: defaultdict[int, list[int | bytes]] = defaultdict(list)
        for number, value in _read_fields(data):
            self._fields[number].append(value)

    def integer(self, number: int) -> int:
        """Return an int64; the default is 0, as everywhere in proto3."""
        value = self._fields[number][-1] if number in self._fields else 0
        if not isinstance(value, int):
            raise InvalidModule(f"field {number} is not a number")
        return _signed(value)

    def integers(self, number: int) -> tuple[int, ...]:
        """Return a repeated int64, packed or not."""
        numbers: list[int] = []
        for value in self._fields.get(number, ()):
            numbers += [value] if isinstance(value, int) else _read_packed(value)
        return tuple(map(_signed, numbers))

    def data(self, number: int) -> bytes:
        value = self._fields[number][-1] if number in self._fields else b""
        if not isinstance(value, bytes):
            raise InvalidModule(f"field {number} has no bytes")
        return value

    def text(self, number: int) -> str:
        return self.data(number).decode("utf-8", "replace")

    def has(self, number: int) -> bool:
        return number in self._fields

    def message(self, number: int) -> Message:
        return Message(self.data(number))

    def messages(self, number: int) -> Iterator[Message]:
        for value in self._fields.get(number, ()):
            if not isinstance(value, bytes):
                raise InvalidModule(f"field {number} has no message")
            yield Message(value)


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise InvalidModule(f"wire type {kind}")
        if position + size > len(data):
            raise InvalidModule("a field ends after its message")
        yield number, data[position : position + size]
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidModule("a number has no end")


def _read_packed(data: bytes) -> list[int]:
    numbers, position = [], 0
    while position < len(data):
        value, position = _read_varint(data, position)
        numbers.append(value)
    return numbers


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


# ------------------------------------------------------------------------------- modules

# Field numbers of xla/service/hlo.proto and xla/xla_data.proto. They never change: XLA reads the
# modules of its older versions.
_COMPUTATIONS, _ENTRY_ID = 3, 6
_NAME, _INSTRUCTIONS, _COMPUTATION_ID, _ROOT_ID = 1, 2, 5, 6
_OPCODE, _SHAPE, _METADATA, _LITERAL = 2, 3, 7, 8
_TUPLE_INDEX, _DIMENSIONS, _CHANNEL, _ID, _OPERANDS, _CALLED = 13, 14, 26, 35, 36, 38
_BACKEND_CONFIG, _OLD_GROUPS, _PAIRS, _DIRECTION, _FRONTEND = 43, 49, 52, 63, 68
_GLOBAL_IDS, _GROUP_LIST, _IOTA_GROUPS, _MESH_GROUPS = 71, 87, 92, 93
_OLD_IOTA_GROUPS = 2  # in the list of groups, before XLA of 2026

_DTYPES = dict(
    zip(
        (1, 2, 3, 4, 5, 21, 26, 30, 6, 7, 8, 9, 22, 27, 31, 10, 11, 12, 16, 15, 18),
        (
            *("pred", "s8", "s16", "s32", "s64", "s4", "s2", "s1"),
            *("u8", "u16", "u32", "u64", "u4", "u2", "u1"),
            *("f16", "f32", "f64", "bf16", "c64", "c128"),
        ),
        strict=True,
    )
)
_DTYPES |= {14: "opaque", 17: "token", 19: "f8e5m2", 20: "f8e4m3fn", 23: "f8e4m3b11fnuz"}
_DTYPES |= {24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn"}
_DTYPES |= {33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn"}
_TUPLE, _BUFFER = 13, 34
_MAX_TABLE = 4096  # elements of a constant that may be a table of offsets
# What each called computation is to an instruction, in the order of the proto.
_CALLED_NAMES = {
    "while": ("body", "condition"),
    "call": ("to_apply",),
    "all-reduce": ("to_apply",),
    "all-reduce-start": ("to_apply",),
    "reduce-scatter": ("to_apply",),
}


def read_module_proto(data: bytes, n_partitions: int) -> Module:
    """Return the module of a serialized `HloModuleProto`. Raises `InvalidModule`."""
    module = Message(data)
    messages = list(module.messages(_COMPUTATIONS))
    # The names are XLA's, unique and without special characters; but they are names, so the
    # position in the file is what everything here refers to.
    names = {
        message.integer(_COMPUTATION_ID): f"computation.{number}"
        for number, message in enumerate(messages)
    }
    if len(names) != len(messages) or module.integer(_ENTRY_ID) not in names:
        raise InvalidModule("the computations have no ids of their own, or none is the entry")
    computations = [_read_computation(message, names) for message in messages]
    return Module(
        computations={computation.name: computation for computation in computations},
        entry=names[module.integer(_ENTRY_ID)],
        frames=StackFrameTables(),
        n_partitions=n_partitions,
    )


def _read_computation(message: Message, names: Mapping[int, str]) -> Computation:
    instructions: dict[int, Instruction] = {}
    for item in message.messages(_INSTRUCTIONS):
        instructions[item.integer(_ID)] = _read_instruction(item, instructions, names)
    root = instructions.get(message.integer(_ROOT_ID))
    if root is None:
        raise InvalidModule("a computation has no root")
    return Computation.from_instructions(
        names[message.integer(_COMPUTATION_ID)], instructions.values(), root
    )


def _read_instruction(
    message: Message, earlier: Mapping[int, Instruction], names: Mapping[int, str]
) -> Instruction:
    opcode = message.text(_OPCODE)
    operands = message.integers(_OPERANDS)
    called = message.integers(_CALLED)
    if not set(operands) <= set(earlier) or not set(called) <= set(names):
        raise InvalidModule(f"a {opcode[:40]} refers to what does not exist")
    operand_text = ", ".join(f"%{earlier[number].name}" for number in operands)
    if opcode == "constant":
        operand_text = _literal_text(message.message(_LITERAL))
    return Instruction(
        name=_instruction_name(message, opcode),
        type=_type_text(message.message(_SHAPE)),
        opcode=opcode,
        operand_text=operand_text,
        attributes=", ".join(_attributes(message, opcode, [names[number] for number in called])),
    )


def _instruction_name(message: Message, opcode: str) -> str:
    """Return a unique name; it begins with the opcode if XLA named the instruction by it."""
    # That is one of the signs by which inserted collectives are recognized.
    prefix = opcode if message.text(_NAME).partition(".")[0] == opcode else f"own-{opcode}"
    return f"{prefix}.{message.integer(_ID)}"


def _type_text(shape: Message) -> str:
    number = shape.integer(2)
    if number == _TUPLE:
        return f"({', '.join(map(_type_text, shape.messages(4)))})"
    if number == _BUFFER:
        return _type_text(shape.message(4))
    if number not in _DTYPES:
        raise InvalidModule(f"element type {number}")
    return f"{_DTYPES[number]}[{','.join(map(str, shape.integers(3)))}]"


def _literal_text(literal: Message) -> str:
    """Return the integers of a constant; of other constants nothing is needed."""
    # One field for each dtype: numbers for 32 and 64 bits, bytes for fewer.
    for field in (4, 5, 6, 7):
        if literal.has(field):
            return ",".join(map(str, literal.integers(field)[:_MAX_TABLE]))
    for field, size, is_signed in ((15, 1, True), (3, 1, False), (17, 2, True), (16, 2, False)):
        data = literal.data(field)
        if data:
            starts = range(0, len(data), size)[:_MAX_TABLE]
            numbers = (
                int.from_bytes(data[i : i + size], "little", signed=is_signed) for i in starts
            )
            return ",".join(map(str, numbers))
    return "..."


def _attributes(message: Message, opcode: str, called: Sequence[str]) -> Iterator[str]:
    """Yield what the walk needs of an instruction, in the form of XLA's text."""
    if message.integer(_CHANNEL) > 0:
        yield f"channel_id={message.integer(_CHANNEL)}"
    groups = _read_groups(message)
    if groups:
        yield f"replica_groups={_groups_text(groups)}"
    if message.integer(_GLOBAL_IDS):
        yield "use_global_device_ids=true"
    pairs = tuple((pair.integer(1), pair.integer(2)) for pair in message.messages(_PAIRS))
    if opcode.startswith("collective-permute"):
        yield f"source_target_pairs={_groups_text(pairs)}"
    if message.integers(_DIMENSIONS):
        yield f"dimensions={{{','.join(map(str, message.integers(_DIMENSIONS)))}}}"
    if opcode == "get-tuple-element":
        yield f"index={message.integer(_TUPLE_INDEX)}"
    if opcode == "compare":
        yield f"direction={re.sub('[^A-Z]', '', message.text(_DIRECTION))}"
    yield from _called_attributes(message, opcode, called)
    yield from _marks_of_compiler(message)


def _called_attributes(message: Message, opcode: str, called: Sequence[str]) -> Iterator[str]:
    if opcode == "conditional":
        yield f"branch_computations={{{', '.join(f'%{name}' for name in called)}}}"
        return
    for key, name in zip(_CALLED_NAMES.get(opcode, ("calls",)), called, strict=False):
        yield f"{key}=%{name}"
    if opcode == "while":
        n_iterations = _known_trip_count(message.data(_BACKEND_CONFIG))
        if n_iterations is not None:
            yield f"known_trip_count={{n={n_iterations}}}"


def _known_trip_count(backend_config: bytes) -> int | None:
    try:
        config = json.loads(backend_config or b"{}")
        return int(config["known_trip_count"]["n"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _marks_of_compiler(message: Message) -> Iterator[str]:
    """Yield the signs by which collectives that XLA inserted are recognized. They are hints."""
    pairs = [(item.text(1), item.text(2)) for item in message.message(_FRONTEND).messages(1)]
    if ("is_spmd_generated", "true") in pairs:
        yield 'is_spmd_generated="true"'
    primitive = message.message(_METADATA).text(2).partition(";")[0].rpartition("/")[2]
    if re.fullmatch(r"\w+", primitive):
        yield f'metadata={{op_name="{primitive}"}}'


# ------------------------------------------------------------------------------- groups of devices


def _read_groups(message: Message) -> Groups:
    """Return the groups of a collective, in whichever of XLA's forms they are."""
    if message.has(_MESH_GROUPS):
        return _read_mesh_groups(message.message(_MESH_GROUPS))
    if message.has(_IOTA_GROUPS):
        return _read_iota_groups(message.message(_IOTA_GROUPS))
    group_list = message.message(_GROUP_LIST)
    if group_list.has(_OLD_IOTA_GROUPS):
        return _read_iota_groups(group_list.message(_OLD_IOTA_GROUPS))
    lists = list(group_list.messages(1)) or list(message.messages(_OLD_GROUPS))
    return tuple(group.integers(1) for group in lists)


def _read_iota_groups(message: Message) -> Groups:
    order = iota_order(message.integers(3), message.integers(4))
    return split_devices(order, message.integer(1), message.integer(2))


def _read_mesh_groups(message: Message) -> Groups:
    mesh = message.message(1)
    # By position: two axes of a program's own mesh can have any name.
    sizes = [axis.integer(2) for axis in mesh.messages(1)]
    used: dict[int, tuple[int, int] | None] = {}
    for reference in message.messages(2):
        part = reference.message(2) if reference.has(2) else None
        used[reference.integer(1)] = (part.integer(1), part.integer(2)) if part else None
    devices: Sequence[int] | None = mesh.integers(2) or None
    if mesh.has(3):
        transform = mesh.message(3)
        devices = iota_order(transform.integers(1), transform.integers(2))
    return groups_along_axes(sizes, used, devices)


def _groups_text(groups: Groups) -> str:
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
