"""The same program traced on several meshes, equation beside equation.

Two traces are the same program if they have the same primitives on the same operands, and every
number in them (a size, a literal, a loop length, a permutation) follows one rule of the mesh sizes.
A Python `if axis_size > 100` shows as a difference, because the full mesh is among the traces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.analysis.scaling.permutation_rules import are_one_grouping, is_one_permutation
from shardlab.analysis.scaling.size_rules import SizeRules
from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.rules.collectives import collective_axes


@dataclasses.dataclass(frozen=True)
class Difference:
    """Why the traces are not one program."""

    what: str
    source: SourceLocation | None = None
    is_permutation: bool = False


@dataclasses.dataclass(frozen=True)
class AlignedEquation:
    """One equation on each mesh; the first is that of the full mesh."""

    eqns: tuple[Any, ...]
    bodies: Mapping[str, tuple[AlignedJaxpr, ...]]  # by parameter

    @property
    def name(self) -> str:
        return str(self.eqns[0].primitive.name)

    @property
    def source(self) -> SourceLocation | None:
        return source_of(self.eqns[0])

    def params(self, key: str) -> tuple[Any, ...]:
        return tuple(eqn.params[key] for eqn in self.eqns)

    def shapes(self, operand: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(eqn.invars[operand].aval.shape) for eqn in self.eqns)


@dataclasses.dataclass(frozen=True)
class AlignedJaxpr:
    """One jaxpr on each mesh."""

    jaxprs: tuple[Any, ...]
    consts: tuple[Sequence[Any], ...]
    equations: tuple[AlignedEquation, ...]


class Misaligned(Exception):
    """The traces are not one program; the difference says why."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.what)
        self.difference = difference


def source_of(eqn: Any) -> SourceLocation | None:
    location = _jax.user_location(eqn)
    return SourceLocation(*location) if location else None


def align_programs(closed: Sequence[Any], rules: SizeRules) -> AlignedJaxpr:
    """Return the traces as one program. Raises `Misaligned` for the first difference."""
    return _Aligner(rules).align(closed)


# Values are the same whatever these say: names, placement, how XLA compiles, and rules for
# derivatives, which were applied before.
_IGNORED_PARAMS = frozenset(
    {
        *("name", "mesh", "sharding", "out_sharding", "in_shardings", "out_shardings"),
        *("in_layouts", "out_layouts", "ctx_mesh", "donated_invars", "keep_unused", "policy"),
        *("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "compiler_options_kvs", "devices", "srcs"),
        *("prevent_cse", "differentiated", "out_trees", "in_avals", "out_avals", "accuracy"),
    }
)
_PRINTING = frozenset({"debug_callback", "debug_print"})
_CALLBACKS = frozenset({"pure_callback", "io_callback"})


class _Aligner:
    def __init__(self, rules: SizeRules) -> None:
        self._rules = rules
        # A jit that is called many times has one jaxpr.
        self._aligned: dict[tuple[int, ...], AlignedJaxpr] = {}

    def align(self, closed: Sequence[Any]) -> AlignedJaxpr:
        key = tuple(map(id, closed))
        if key not in self._aligned:
            self._aligned[key] = self._align(closed)
        return self._aligned[key]

    def _align(self, closed: Sequence[Any]) -> AlignedJaxpr:
        opened = [_jax.open_jaxpr(item) for item in closed]
        jaxprs = tuple(jaxpr for jaxpr, _ in opened)
        consts = tuple(values for _, values in opened)
        self._check_lengths(jaxprs)
        for values in zip(*consts, strict=True):
            self._check_array(values, "A constant array of the program")
        # Variables have no names of their own: those at the same place are the same.
        numbers: list[dict[Any, int]] = [{} for _ in jaxprs]
        for number, jaxpr in zip(numbers, jaxprs, strict=True):
            for var in (*jaxpr.constvars, *jaxpr.invars):
                number[var] = len(number)
        equations = []
        for eqns in zip(*(jaxpr.eqns for jaxpr in jaxprs), strict=True):
            equations.append(self._align_equation(eqns, numbers))
            for number, eqn in zip(numbers, eqns, strict=True):
                for var in eqn.outvars:
                    number[var] = len(number)
        self._check_operands(None, [jaxpr.outvars for jaxpr in jaxprs], numbers)
        return AlignedJaxpr(jaxprs, consts, tuple(equations))

    def _check_lengths(self, jaxprs: Sequence[Any]) -> None:
        names = [[eqn.primitive.name for eqn in jaxpr.eqns] for jaxpr in jaxprs]
        for other, jaxpr in zip(names[1:], jaxprs[1:], strict=True):
            if other == names[0]:
                continue
            pairs = list(zip(names[0], other, strict=False))
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            # The longer trace has the line of what the other one lacks.
            longer = max(jaxprs[0].eqns, jaxpr.eqns, key=len)
            raise Misaligned(
                Difference(
                    f"The full mesh has {len(names[0])} operations where a scaled mesh has "
                    f"{len(other)}: a Python branch or loop depends on the number of devices"
                    if len(names[0]) != len(other)
                    else f"The full mesh has a {names[0][first]} where a scaled mesh has a "
                    f"{other[first]}",
                    source_of(longer[min(first, len(longer) - 1)]),
                )
            )

    def _align_equation(
        self, eqns: tuple[Any, ...], numbers: Sequence[dict[Any, int]]
    ) -> AlignedEquation:
        name = eqns[0].primitive.name
        if name in _CALLBACKS:
            self._fail("The program calls the host, and what that returns cannot be read", eqns)
        self._check_operands(eqns, [eqn.invars for eqn in eqns], numbers)
        for outs in zip(*(eqn.outvars for eqn in eqns), strict=True):
            self._check_types(eqns, outs)
        bodies: dict[str, tuple[AlignedJaxpr, ...]] = {}
        if name not in _PRINTING:
            for key in eqns[0].params:
                if key not in _IGNORED_PARAMS:
                    values = [eqn.params.get(key) for eqn in eqns]
                    bodies[key] = tuple(self._compare(key, values, eqns))
        return AlignedEquation(eqns, bodies)

    def _check_operands(
        self,
        eqns: tuple[Any, ...] | None,
        atoms: Sequence[Sequence[Any]],
        numbers: Sequence[dict[Any, int]],
    ) -> None:
        if len({len(items) for items in atoms}) > 1:
            self._fail("An operation has another number of operands", eqns)
        for places in zip(*atoms, strict=True):
            are_literals = {isinstance(atom, _jax.Literal) for atom in places}
            if are_literals == {True}:
                self._check_array([_jax.literal_value(atom) for atom in places], "A number", eqns)
            elif (
                len(are_literals) > 1
                or len({number[atom] for number, atom in zip(numbers, places, strict=True)}) > 1
            ):
                self._fail("An operation has other operands", eqns)

    def _check_types(self, eqns: tuple[Any, ...], variables: Sequence[Any]) -> None:
        avals = [var.aval for var in variables]
        if len({str(getattr(aval, "dtype", None)) for aval in avals}) > 1:
            self._fail("A value has another dtype", eqns)
        shapes = [tuple(getattr(aval, "shape", ())) for aval in avals]
        if len({len(shape) for shape in shapes}) > 1:
            self._fail("A value has another rank", eqns)
        for sizes in zip(*shapes, strict=True):
            if not self._rules.follows(sizes):
                self._fail(f"A dimension has the sizes {_list_values(sizes)}", eqns)

    def _compare(self, key: str, values: Sequence[Any], eqns: Any) -> Iterator[AlignedJaxpr]:
        """Compare one parameter of all traces; yield the jaxprs in it."""
        first = values[0]
        if key == "perm":
            self._check_permutation(values, eqns)
        elif key == "axis_index_groups":
            sizes = self._rules.n_devices(collective_axes(eqns[0].params))
            if not are_one_grouping(values, sizes, self._rules):
                self._fail("The device groups follow no rule that holds on every size", eqns, True)
        elif hasattr(first, "eqns") or hasattr(getattr(first, "jaxpr", None), "eqns"):
            yield self.align(values)
        elif isinstance(first, dict):
            yield from self._compare(key, [tuple(value.items()) for value in values], eqns)
        elif isinstance(first, (tuple, list)):
            if len({len(value) for value in values}) > 1:
                self._fail(f"The parameter {key!r} has another length", eqns)
            for items in zip(*values, strict=True):
                yield from self._compare(key, items, eqns)
        else:
            self._check_plain(key, values, eqns)

    def _check_permutation(self, perms: Sequence[Any], eqns: Any) -> None:
        sizes = self._rules.n_devices(collective_axes(eqns[0].params))
        if not is_one_permutation(perms, sizes, self._rules):
            self._fail("The permutation follows no rule that holds on every size", eqns, True)

    def _check_plain(self, key: str, values: Sequence[Any], eqns: Any) -> None:
        first = values[0]
        if isinstance(first, (int, float)) and not isinstance(first, bool):
            if not self._rules.follows(values):
                self._fail(f"The parameter {key!r} has the values {_list_values(values)}", eqns)
        elif isinstance(first, (np.ndarray, jax.Array)):
            self._check_array(values, f"The parameter {key!r}", eqns)
        elif not _has_no_value(first) and len({repr(value) for value in values}) > 1:
            self._fail(f"The parameter {key!r} differs", eqns)

    def _check_array(self, values: Sequence[Any], what: str, eqns: Any = None) -> None:
        """Check a constant: the same array everywhere, or one number that follows a rule."""
        if any(_jax.is_extended(getattr(value, "dtype", None)) for value in values):
            return  # random keys: the same seed by the same program
        arrays = [np.asarray(value) for value in values]
        shapes = {array.shape for array in arrays}
        if len(shapes) == 1 and len({array.tobytes() for array in arrays}) == 1:
            return
        described = [_describe_array(array) for array in arrays]
        columns = list(zip(*described, strict=False))
        tolerance = _tolerance(arrays[0].dtype)
        is_rule = len({len(item) for item in described}) == 1 and columns
        if not is_rule or not all(self._rules.follows(item, tolerance) for item in columns):
            shown = _list_values([item[0] for item in described if item])
            of = f" is {shown}" if all(array.size == 1 for array in arrays) else " differs"
            self._fail(f"{what}{of}", eqns)

    def _fail(self, what: str, eqns: Any, is_permutation: bool = False) -> None:
        names = _list_values([_sizes_text(sizes) for sizes in self._rules.sizes])
        source = source_of(eqns[0]) if eqns else None
        raise Misaligned(Difference(f"{what} on {names}", source, is_permutation))


def _has_no_value(value: Any) -> bool:
    """Return whether a parameter says nothing about values: functions, meshes, shardings."""
    kinds = (jax.sharding.Mesh, jax.sharding.AbstractMesh, jax.sharding.Sharding)
    return isinstance(value, kinds) or (isinstance(value, Callable) and not isinstance(value, type))  # type: ignore[arg-type]


def _describe_array(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return the numbers of a constant that may depend on the mesh; empty if they follow no rule.

    A filled array has one number and its shape; a range has its first number, step and length.
    """
    if array.dtype.kind not in "biuf" and "float" not in str(array.dtype):
        return ()
    convert = int if array.dtype.kind in "biu" else float
    flat = array.reshape(-1)
    if flat.size and bool((flat == flat[0]).all()):
        return (convert(flat[0]), *array.shape)
    if array.ndim == 1 and array.dtype.kind in "iu" and flat.size > 2:
        steps = np.diff(flat.astype(np.int64))
        if bool((steps == steps[0]).all()):
            return (int(flat[0]), int(steps[0]), flat.size)
    return ()


def _tolerance(dtype: Any) -> float:
    is_float = dtype.kind == "f" or "float" in str(dtype)
    return 4 * float(jax.numpy.finfo(dtype).eps) if is_float else 0.0


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _list_values(values: Sequence[Any]) -> str:
    texts = [f"{value:.6g}" if isinstance(value, float) else f"{value}" for value in values]
    return ", ".join(texts)
