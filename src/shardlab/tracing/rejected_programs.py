"""Programs that JAX rejects while tracing: its message, and what the message is about.

Finds the pattern `rejected`. Facts: `message` (JAX's), `error` (the exception's name), `family`,
and by family:

- `unknown_axis`: `axis`, `mesh` (pairs of name and size), `used_by` (in_specs, a constraint, a
  call).
- `arguments`: `function`, `mesh`, `arguments`: those of a shard_map whose in_specs do not fit, each
  with `path`, `shape` and `spec` (for each dimension its mesh axes); `swappable`: the numbers of
  two arguments such that JAX accepts the program if their specs are swapped, or None.
- `rank`: `spec`, `length`, `rank`, `owner`.
- `indivisible`: `spec`, `dim`, `size`, `n`, `shape`, `owner`.
- `replication`, `carry`, `branches`, `partly_varying`, `tree`, `no_mesh`, `mesh`, `explicit`,
  `explicit_type`, `manual`, `uneven_collective`, `not_a_spec`, `text`, `other`: the message alone.

The regular expressions match messages of JAX 0.10 to 0.12, whose exceptions carry no fields.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab._jax.explicit_axes import is_explicit_axes_error
from shardlab.errors import LabError, UnboundAxis
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.simulator.interpreter import shard_boundary
from shardlab.tracing.observation import ProgramPattern

Frames = Sequence[tuple[types.FrameType, int]]


@contextlib.contextmanager
def full_tracebacks() -> Iterator[None]:
    """Keep the frames of JAX in tracebacks; they show which check of JAX raised."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with _jax.suppress_prints():
            yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


# A program that branches on a value runs outside jit; that is not a rejection of the program.
_CONCRETIZATION_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)


def find_rejection(error: BaseException, f: Any = None) -> ProgramPattern | None:
    """Return why JAX rejects `f`; None if the exception is the program's own or shardlab's.

    The exception must have been raised within `full_tracebacks`.
    """
    if isinstance(error, LabError) and not isinstance(error, UnboundAxis):
        return None
    frames = list(_traceback_frames(error))
    # Raised in JAX itself, not by the user's code that JAX has called.
    is_jax = bool(frames) and _is_in_package("jax", frames[-1][0])
    is_rejection = is_jax or isinstance(error, UnboundAxis)
    if not is_rejection or isinstance(error, _CONCRETIZATION_ERRORS):
        return None
    message = error.what if isinstance(error, UnboundAxis) else str(error)
    facts = {
        "message": message,
        "error": type(error).__name__,
        **_classify_error(error, message, frames),
    }
    return ProgramPattern("rejected", _error_location(frames, error, f), facts)


def _traceback_frames(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_in_package(package: str, frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == package or module.startswith((f"{package}.", f"{package}lib."))


def _error_location(frames: Frames, error: BaseException, f: Any) -> SourceLocation:
    """Return the innermost line of the user's code, or where `f` is defined."""
    if isinstance(error, UnboundAxis) and error.location:
        return SourceLocation(*error.location)
    for frame, line in reversed(frames):
        code = frame.f_code
        if _jax.is_user_file(code.co_filename) and not _is_in_package("shardlab", frame):
            return SourceLocation(code.co_filename, line, code.co_name)
    definition = getattr(inspect.unwrap(f), "__code__", None)
    if definition is None:
        return UNKNOWN_LOCATION
    return SourceLocation(definition.co_filename, definition.co_firstlineno, definition.co_name)


# ---------------------------------------------------------------------------- families of messages

_SPECS_AXIS = re.compile(r"(?P<user>in_specs|out_specs)\S* refers to '(?P<axis>[^']+)'")
_UNBOUND_AXIS = re.compile(r"unbound axis name: (?P<axis>\w+)")
_CONSTRAINT_AXIS = re.compile(r"Resource axis: (?P<axis>\w+) of ")
_FAMILY_BY_TEXT = {
    "require replication which can't be statically inferred": "replication",
    "must be divisible by shard_count": "uneven_collective",
    "must match shard count": "uneven_collective",
    "has to be divisible by the size of the named axis": "uneven_collective",
    "requires the size of the mapped axis axis_name to equal": "uneven_collective",
    "must be a pytree of `jax.sharding.PartitionSpec`": "not_a_spec",
    "of type <class 'str'> is not a valid JAX type": "text",
    "can only accept axis_name which corresponds to one of": "partly_varying",
    "pytree structure error": "tree",
    "does not match the specs of the input": "explicit",
    "can only refer to Auto axes": "manual",
    "contains a manual axes": "manual",
    "context mesh cannot be empty": "no_mesh",
    "requires a non-empty mesh in context": "no_mesh",
    "should match the mesh": "mesh",
    "Received incompatible devices": "mesh",
    "ntext mesh": "mesh",
}


def _classify_error(error: BaseException, message: str, frames: Frames) -> dict[str, Any]:
    """Return the family of a message, with the facts of that family."""
    facts = (
        _unknown_axis_facts(error, message, frames)
        or _argument_facts(frames)
        or _rank_facts(message)
        or _indivisible_facts(message, frames)
    )
    if facts:
        return facts
    # JAX uses one sentence for loops and branches; only the end of it differs.
    if "manual axis types do not match" in message:
        return {"family": "branches" if "branches must have" in message else "carry"}
    families = (family for text, family in _FAMILY_BY_TEXT.items() if text in message)
    default = "explicit_type" if is_explicit_axes_error(error) else "other"
    return {"family": next(families, default)}


def _unknown_axis_facts(
    error: BaseException, message: str, frames: Frames
) -> dict[str, Any] | None:
    mesh = _innermost_mesh(frames)
    for axis, user in _named_axes(error, message):
        # An axis that the mesh has is one that axis_names leaves to the compiler.
        if axis not in dict(mesh):
            return {"family": "unknown_axis", "axis": axis, "mesh": mesh, "used_by": user}
    return None


def _named_axes(error: BaseException, message: str) -> Iterator[tuple[str, str]]:
    """Yield the mesh axis that a message is about, and what uses it."""
    if isinstance(error, UnboundAxis):
        yield error.axis, error.operation
        return
    if match := _SPECS_AXIS.search(message):
        yield match["axis"], match["user"]
    if match := _UNBOUND_AXIS.search(message):
        call = re.search(r"call (\w+) under", message)
        yield match["axis"], call[1] if call else "a collective"
    if match := _CONSTRAINT_AXIS.search(message):
        starts_with_axis = message.startswith("Resource axis")
        yield match["axis"], f"the spec {_find_spec(message)}" if starts_with_axis else "a spec"


def _innermost_mesh(frames: Frames) -> tuple[tuple[str, int], ...]:
    """Return the mesh in the innermost frame that has one."""
    for frame, _ in reversed(frames):
        # `mesh` is a local variable of JAX's own checks, `sizes` of `_jax.axis_errors`.
        for name in ("mesh", "sizes"):
            mesh = frame.f_locals.get(name)
            shape = getattr(mesh, "shape", mesh)
            pairs = tuple(shape.items()) if isinstance(shape, Mapping) else ()
            if pairs and all(isinstance(n, str) and isinstance(s, int) for n, s in pairs):
                return pairs
    return ()


# ------------------------------------------------------------------------- arguments of a shard_map

# Trying all pairs of more arguments would take too long.
_MAX_SWAPPED = 12


def _argument_facts(frames: Frames) -> dict[str, Any] | None:
    """Return the arguments and specs of a shard_map that JAX compared and rejected.

    The message shows one of them; the local variables of JAX's check have all.
    """
    for frame, _ in reversed(frames):
        if frame.f_code.co_name == "_check_specs_vs_args":
            local = frame.f_locals
            if not all(hasattr(x, "shape") for x in local["xs"]):
                return None  # an argument is not an array, so this is not about specs
            paths = [_leaf_path(local["f"], local["in_tree"], n) for n in local["dyn_argnums"]]
            arguments = zip(paths, local["in_specs_flat"], local["xs"], strict=True)
            return {
                "family": "arguments",
                "function": getattr(local["f"], "__name__", "the function"),
                "mesh": tuple(local["mesh"].shape.items()),
                "arguments": tuple(
                    {
                        "path": path,
                        "shape": tuple(array.shape),
                        "spec": tuple(shard_boundary.spec_entries(spec)),
                    }
                    for path, spec, array in arguments
                ),
                "swappable": _find_swappable(local, frames),
            }
    return None


def _find_swappable(local: Mapping[str, Any], frames: Frames) -> tuple[int, int] | None:
    """Return two arguments such that JAX accepts the program if their specs are swapped.

    JAX has to trace it: sizes alone do not prove a swap. A batch that is not divisible and a weight
    that would be are no swap, and then the body does not fit its shards.
    """
    specs, tree = list(local["in_specs_flat"]), local["in_tree"]
    out_specs = next(
        (frame.f_locals["out_specs"] for frame, _ in frames if "out_specs" in frame.f_locals), None
    )
    if len(specs) != tree.num_leaves or len(specs) > _MAX_SWAPPED or out_specs is None:
        return None
    # Shapes only: the arguments are tracers of a trace that has failed.
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in local["xs"]]
    # An abstract mesh is enough to trace, and needs no devices.
    mesh = getattr(local["mesh"], "abstract_mesh", local["mesh"])
    for first, second in itertools.combinations(range(len(specs)), 2):
        swapped = list(specs)
        swapped[first], swapped[second] = specs[second], specs[first]
        in_specs = jax.tree.unflatten(tree, swapped)
        mapped = jax.shard_map(local["f"], mesh=mesh, in_specs=in_specs, out_specs=out_specs)
        with contextlib.suppress(Exception):
            if swapped != specs and jax.eval_shape(mapped, *jax.tree.unflatten(tree, shapes)):
                return first, second
    return None


def _leaf_path(f: Any, tree: Any, number: int) -> str:
    """Return the name of a leaf of the arguments: `params['mlp']['kernel']`."""
    # Leaf numbers as leaves: flattening with paths then maps each number to its path.
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    leaves, _ = jax.tree_util.tree_flatten_with_path(numbered)
    path = next(path for path, leaf in leaves if leaf == number)
    root = f"argument {path[0].idx}"
    with contextlib.suppress(TypeError, ValueError, IndexError):
        parameter = list(inspect.signature(f).parameters.values())[path[0].idx]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            root = parameter.name
    return f"{root}{jax.tree_util.keystr(path[1:])}"


# ----------------------------------------------------------------------------- rank, divisibility


def _find_spec(message: str) -> str:
    match = re.search(r"P\((?:[^()]|\([^()]*\))*\)", message)
    return match[0] if match else "of it"


def _rank_facts(message: str) -> dict[str, Any] | None:
    output = re.search(
        r"(out_specs\S*) is (P\(.*\)) which has length (\d+), but (.+?) has shape .*?, "
        r"which has rank (\d+)",
        message,
    )
    if output:
        _, spec, length, path, rank = output.groups()
        owner = f"the output {path.replace('*args', '...')}"
        facts = {"spec": spec, "length": int(length), "rank": int(rank), "owner": owner}
        return {"family": "rank", **facts}
    array = re.search(r"of rank at least (\d+), but was applied to a value of rank (\d+)", message)
    if array:
        length, rank = int(array[1]), int(array[2])
        facts = {"spec": _find_spec(message), "length": length, "rank": rank, "owner": "the array"}
        return {"family": "rank", **facts}
    return None


_INDIVISIBLE = (
    # shardings of a jit and device_put, in newer and in older versions of JAX
    r"array axis (?P<dim>\d+) is partitioned (?P<n>\d+) times, but .*?dimension size (?:is )?"
    r"(?P<size>\d+)",
    r"dimension (?P<dim>\d+) should be divisible by (?P<n>\d+), but it is equal to (?P<size>\d+)",
)


def _indivisible_facts(message: str, frames: Frames) -> dict[str, Any] | None:
    matches = (re.search(pattern, message, re.S) for pattern in _INDIVISIBLE)
    match = next(filter(None, matches), None)
    if match is None:
        return None
    shape = re.search(r"(?:full shape|Got shape): \(([\d, ]*)\)", message)
    return {
        "family": "indivisible",
        "spec": _find_spec(message),
        "shape": tuple(int(size) for size in re.findall(r"\d+", shape[1])) if shape else (),
        "owner": _array_owner(frames),
        **{name: int(number) for name, number in match.groupdict().items()},
    }


def _array_owner(frames: Frames) -> str:
    """Return the argument or output of a jit that JAX checked; older messages do not name it."""
    for frame, _ in frames:
        if frame.f_code.co_name == "pjit_check_aval_sharding":
            name, description = frame.f_locals["name"], frame.f_locals["what_aval"]
            if name:
                return f"{description.split()[-1].removesuffix('s')} '{name}'"
    return "an array"
