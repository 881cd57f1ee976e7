"""The contents of an exported program, read from its StableHLO operation by operation.

The bytes may come from an untrusted process: nothing is compiled or run here, and sizes are capped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src.export import _export  # _module_to_bytecode: the form in which a program is exported
from jax._src.interpreters import mlir  # make_ir_context, with all dialects loaded
from jax._src.lib.mlir import ir

_COLLECTIVES = {
    "stablehlo.all_reduce": "psum",
    "stablehlo.all_gather": "all_gather",
    "stablehlo.reduce_scatter": "psum_scatter",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_permute": "ppermute",
    "stablehlo.collective_broadcast": "pbroadcast",
}
_REDUCTIONS = {
    "stablehlo.maximum": "pmax",
    "stablehlo.or": "pmax",
    "stablehlo.minimum": "pmin",
    "stablehlo.and": "pmin",
}
# Functions that call each other twice each make exponentially many steps from a few bytes: beyond
# these limits it is not a program that a learner wrote.
MAX_STEPS = 200_000
MAX_DEPTH = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of the program itself; `count` is None in a loop of unknown length."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    count: int | None
    group_size: int
    pairs: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(kw_only=True)
class ProgramContents:
    """The collectives and operations of an exported program."""

    collectives: list[Collective] = dataclasses.field(default_factory=list)
    custom_calls: set[str] = dataclasses.field(default_factory=set)
    operations: set[str] = dataclasses.field(default_factory=set)
    largest_constant: int = 0  # in elements
    n_operations: int = 0


class TooDeep(Exception):
    """A program whose functions call each other endlessly, or almost."""


def read_contents(exported: jax.export.Exported) -> ProgramContents:
    """Return the contents of an exported program; calls in loops count once per iteration."""
    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        contents = ProgramContents()
        functions = ModuleFunctions(module)
        _ModuleWalk(functions, contents).walk_all(module.operation)
        if functions.main is not None:
            _ModuleWalk(functions, contents).walk_executed(functions.main, 1, 0)
        return contents


class ModuleFunctions:
    """The functions of a module, and which of them an operation executes."""

    def __init__(self, module: Any) -> None:
        self._module = module  # its operations are gone as soon as it is
        self._by_name = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }

    @property
    def main(self) -> Any | None:
        return self._by_name.get("main")

    def called_by(self, op: Any) -> Iterator[Any]:
        """Yield the functions that an operation refers to: calls, composites, custom calls."""
        # Whatever the name of the attribute is: an operation that refers to a function executes it.
        for item in _named_attributes(op):
            for name in _symbol_names(item.attr):
                if name in self._by_name:
                    yield self._by_name[name]


# Attributes with a prefix are notes for a later stage; these two dialects are JAX's own. All others
# are the program's choice (jax.experimental.xla_metadata): names that end up in XLA's text,
# shardings in another notation, settings of the compiler.
_KEPT_ATTRIBUTES = ("sdy.", "jax.")
_MODULE_ATTRIBUTES = ("mhlo.num_partitions", "mhlo.num_replicas")


def strip_attributes(exported: jax.export.Exported) -> jax.export.Exported:
    """Return a program without the notes to the compiler that a submission can attach to it."""
    with mlir.make_ir_context():
        module = exported.mlir_module(serialized=False)
        _strip_operation(module.operation, _MODULE_ATTRIBUTES)
        serialized = _export._module_to_bytecode(module)
    return dataclasses.replace(exported, mlir_module_serialized=serialized)


def _strip_operation(operation: Any, allowed: tuple[str, ...] = ()) -> None:
    for name in [item.name for item in _named_attributes(operation)]:
        if "." in name and name not in allowed and not name.startswith(_KEPT_ATTRIBUTES):
            del operation.attributes[name]
    for key in ("arg_attrs", "res_attrs"):
        if key in operation.attributes:
            notes = ir.ArrayAttr(operation.attributes[key])
            operation.attributes[key] = ir.ArrayAttr.get([_strip_notes(item) for item in notes])
    for op in _inner_operations(operation):
        _strip_operation(op)


def _strip_notes(notes: Any) -> Any:
    """Return what is said about one argument or result of a function."""
    attributes = {
        item.name: item.attr
        for item in _dictionary_items(notes)
        if item.name.startswith(_KEPT_ATTRIBUTES)
    }
    return ir.DictAttr.get(attributes)


def _dictionary_items(notes: Any) -> list[Any]:
    dictionary = ir.DictAttr(notes)
    return [dictionary[number] for number in range(len(dictionary))]


def _named_attributes(operation: Any) -> list[Any]:
    attributes = operation.attributes
    return [attributes[number] for number in range(len(attributes))]


class _ModuleWalk:
    """Collects the contents of a module."""

    def __init__(self, functions: ModuleFunctions, contents: ProgramContents) -> None:
        self._functions, self._contents = functions, contents
        self._steps = 0

    def walk_all(self, operation: Any) -> None:
        """Collect every operation, also in functions that are never called."""
        contents = self._contents
        for op in _inner_operations(operation):
            contents.n_operations += 1
            contents.operations.add(op.name)
            if op.name == "stablehlo.custom_call":
                contents.custom_calls.add(ir.StringAttr(op.attributes["call_target_name"]).value)
            elif op.name == "stablehlo.constant":
                contents.largest_constant = max(
                    contents.largest_constant, _n_elements(op.results[0])
                )
            self.walk_all(op)

    def walk_executed(self, operation: Any, count: int | None, depth: int) -> None:
        """Collect the collectives that the program executes, with how often it executes them."""
        for op in _inner_operations(operation):
            self._steps += 1
            if self._steps > MAX_STEPS or depth > MAX_DEPTH:
                raise TooDeep("the program's functions call each other too often")
            if op.name in _COLLECTIVES:
                self._add_collective(op, count)
            elif op.name == "stablehlo.while":
                trips = trip_count(op)
                inner = None if trips is None or count is None else count * trips
                self.walk_executed(op, inner, depth + 1)
            else:
                self.walk_executed(op, count, depth + 1)
                for function in self._functions.called_by(op):
                    self.walk_executed(function, count, depth + 1)

    def _add_collective(self, op: Any, count: int | None) -> None:
        if not any(_is_used(result) for result in op.results):
            return  # XLA removes it as dead code
        is_permutation = op.name == "stablehlo.collective_permute"
        pairs = _permutation_pairs(op)
        if is_permutation and all(a == b for a, b in pairs):
            return  # no device sends anything to another one
        n_devices = 2 if is_permutation else group_size(op)
        for operand in op.operands:
            shape, dtype = _tensor_type(operand)
            self._contents.collectives.append(
                Collective(
                    op=collective_name(op),
                    shape=shape,
                    dtype=dtype,
                    count=count,
                    group_size=n_devices,
                    pairs=pairs,
                )
            )


def _symbol_names(attribute: Any) -> Iterator[str]:
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        yield attribute.value
    elif isinstance(attribute, ir.ArrayAttr):
        for item in attribute:
            yield from _symbol_names(item)


def _inner_operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation


def _is_used(result: Any) -> bool:
    return next(iter(result.uses), None) is not None


def collective_name(op: Any) -> str:
    """Return the JAX function of a collective; empty if an operation is none."""
    name = _COLLECTIVES.get(op.name, "")
    if name == "psum":
        for inner in _inner_operations(op):
            return _REDUCTIONS.get(inner.name, name)
    return name


def _tensor_type(value: Any) -> tuple[tuple[int, ...], str]:
    kind = ir.RankedTensorType(value.type)
    return tuple(kind.shape), _DTYPES.get(str(kind.element_type), str(kind.element_type))


_DTYPES = {
    "i1": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def _n_elements(value: Any) -> int:
    with contextlib.suppress(ValueError):
        return math.prod(ir.RankedTensorType(value.type).shape)
    return 0


def _permutation_pairs(op: Any) -> tuple[tuple[int, int], ...]:
    if op.name != "stablehlo.collective_permute":
        return ()
    pairs = np.asarray(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
    return tuple((int(a), int(b)) for a, b in pairs.reshape(-1, 2))


def group_size(op: Any) -> int:
    """Return how many devices take part in one call."""
    # JAX 0.10 lists the device ids of each group; JAX 0.12 names mesh axes.
    groups = op.attributes["replica_groups"]
    with contextlib.suppress(ValueError):
        return int(ir.ShapedType(ir.DenseElementsAttr(groups).type).shape[-1])
    return _size_along_axes(op, str(groups))


def _size_along_axes(op: Any, text: str) -> int:
    """Return the size of a group that is given by mesh axes."""
    # jaxlib has no Python class for this attribute, so its text is parsed.
    mesh = re.search(r"mesh = @(\w+)", text)
    names = re.findall(r'name = "([^"]+)"', text)
    module = op
    while module.parent is not None:
        module = module.parent.operation
    for candidate in _inner_operations(module):
        if candidate.name == "sdy.mesh" and mesh and mesh[1] == _symbol_name(candidate):
            sizes = dict(re.findall(r'"([^"]+)"=(\d+)', str(candidate.attributes["mesh"])))
            return math.prod(int(sizes[name]) for name in names)
    raise ValueError(f"the groups {text[:80]} refer to no mesh")


def _symbol_name(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


# ------------------------------------------------------------------------------------- loops


def trip_count(loop: Any) -> int | None:
    """Return the iterations of a loop that counts up to a constant; None for any other loop."""
    condition, body = (region.blocks[0] for region in loop.regions)
    test = _defining_op(condition.operations[len(condition.operations) - 1].operation.operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    if "LT" not in str(test.attributes["comparison_direction"]):
        return None
    number = _argument_number(condition, test.operands[0])
    if number is None:
        return None
    start, stop = _constant_value(loop.operands[number]), _constant_value(test.operands[1])
    returned = body.operations[len(body.operations) - 1].operation
    step = _loop_step(body, returned.operands[number], number)
    if start is None or stop is None or step is None or step <= 0:
        return None
    trips = max(0, -(-(stop - start) // step))
    # A counter that exceeds its dtype starts again at the other end.
    return trips if start + trips * step <= _max_integer(loop.operands[number]) else None


def _max_integer(value: Any) -> int:
    kind = ir.IntegerType(ir.RankedTensorType(value.type).element_type)
    return int((1 << (kind.width - (0 if kind.is_unsigned else 1))) - 1)


def _defining_op(value: Any) -> Any:
    owner = value.owner
    return owner if isinstance(owner, ir.Operation) else getattr(owner, "operation", None)


def _argument_number(block: Any, value: Any) -> int | None:
    for number, argument in enumerate(block.arguments):
        if argument == value:
            return number
    return None


def _constant_value(value: Any) -> int | None:
    owner = None if isinstance(value.owner, ir.Block) else _defining_op(value)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    with contextlib.suppress(ValueError):  # a counter need not be an integer
        numbers = np.asarray(ir.DenseIntElementsAttr(owner.attributes["value"]))
        return int(numbers.reshape(-1)[0]) if numbers.size == 1 else None
    return None


def _loop_step(body: Any, value: Any, number: int) -> int | None:
    owner = None if isinstance(value.owner, ir.Block) else _defining_op(value)
    if owner is None or owner.name != "stablehlo.add":
        return None
    if _argument_number(body, owner.operands[0]) != number:
        return None
    return _constant_value(owner.operands[1])
