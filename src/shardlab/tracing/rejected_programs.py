"""What JAX refuses when it traces a program: its own words, and what they are about.

Makes the clue `record_rejections`. Its facts: `words` (JAX's), `error` (the exception's name), `family`, and
by family:

- `unknown_axis`: `axis`, `known` (the mesh, as pairs), `asked_by` (in_specs, a constraint, a call).
- `arguments`: `function`, `mesh`, `arguments`: of a shard_map whose in_specs do not fit, each with
  `path`, `shape` and `spec` (for each array axis the mesh axes); `exchanged`: the numbers of two
  of them with whose specs exchanged JAX accepts the program, or None.
- `rank`: `spec`, `length`, `rank`, `owner`. `indivisible`: `spec`, `axis`, `size`, `n`,
  `shape`, `owner`.
- `replication`, `carry`, `branches`, `partly_varying`, `tree`, `no_mesh`, `mesh`, `explicit`,
  `manual`, `uneven_collective`, `not_a_spec`, `text`, `other`: words alone.
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
from shardlab.errors import LabError, UnboundAxis
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.tracing.observation import ProgramPattern


@contextlib.contextmanager
def full_tracebacks() -> Iterator[None]:
    """Within this block exceptions keep the frames of JAX, which tell whose mistake it is."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with _jax.no_prints():
            yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def record_rejections(error: BaseException, f: Any = None) -> ProgramPattern | None:
    """Return what JAX refuses of `f`; None where the exception is the program's own or ours.

    The exception must have been raised with `full_tracebacks`.
    """
    if isinstance(error, LabError) and not isinstance(error, UnboundAxis):
        return None
    frames = list(_frames(error))
    is_jax = bool(frames) and _is_of("jax", frames[-1][0])
    if not (is_jax or isinstance(error, UnboundAxis)) or isinstance(error, _LOOKS_AT_VALUES):
        return None
    words = error.what if isinstance(error, UnboundAxis) else str(error)
    facts = {"words": words, "error": type(error).__name__, **_family(words, frames)}
    return ProgramPattern("refused", _place(frames, error, f), facts)


# A program that decides by a value runs well outside of jit: that is no refusal of JAX.
_LOOKS_AT_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)

# Beyond this many arguments nobody exchanges two by hand, and trying all pairs takes long.
_MOST_EXCHANGED = 12

Frames = Sequence[tuple[types.FrameType, int]]


def _frames(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_of(package: str, frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == package or module.startswith((f"{package}.", f"{package}lib."))


def _place(frames: Frames, error: BaseException, f: Any) -> SourceLocation:
    """Return the person's own line nearest to the refusal, or where `f` begins."""
    told = re.match(r"(.+):(\d+) \((.*)\)$", error.where) if isinstance(error, LabError) else None
    if told:
        return SourceLocation(told[1], int(told[2]), told[3])
    for frame, line in reversed(frames):
        code = frame.f_code
        if _jax.is_a_persons(code.co_filename) and not _is_of("shardlab", frame):
            return SourceLocation(code.co_filename, line, code.co_name)
    own = getattr(inspect.unwrap(f), "__code__", None)
    return (
        SourceLocation(own.co_filename, own.co_firstlineno, own.co_name)
        if own
        else UNKNOWN_LOCATION
    )


# -------------------------------------------------------------------------------- what it is about

_AXIS = (
    (r"(in_specs|out_specs)\S* refers to '([^']+)'", 2, 1),
    (r"unbound axis name: (\w+)", 1, None),
    (r"Resource axis: (\w+) of ", 1, None),
    (r"is over mesh axis '([^']+)', which this mesh does not have", 1, None),
)
_WORDS = {
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
    "should match the mesh": "mesh",
    "Received incompatible devices": "mesh",
    "ntext mesh": "mesh",
}


def _family(words: str, frames: Frames) -> dict[str, Any]:
    for pattern, axis, asked_by in _AXIS:
        found = re.search(pattern, words)
        if found:
            by = found[asked_by] if asked_by else _asked_by(words)
            known = _known_axes(frames)
            if found[axis] in dict(known):
                continue  # it exists, and axis_names leaves it to the compiler
            return {"family": "unknown_axis", "axis": found[axis], "known": known, "asked_by": by}
    special = _arguments(frames) or _rank(words) or _indivisible(words, frames)
    if special:
        return special
    if "manual axis types do not match" in words:
        return {"family": "branches" if "branches must have" in words else "carry"}
    return {"family": next((f for text, f in _WORDS.items() if text in words), "other")}


def _asked_by(words: str) -> str:
    """Return what named the axis: a constraint, or the function of JAX that was called."""
    if words.startswith("Resource axis"):
        return f"the spec {_spec_in(words)}"
    called = re.match(r"(\w+) is over mesh axis", words) or re.search(r"call (\w+) under", words)
    return called[1] if called else "a collective"


def _known_axes(frames: Frames) -> tuple[tuple[str, int], ...]:
    """Return the mesh nearest to the refusal."""
    for frame, _ in reversed(frames):
        for name in ("mesh", "sizes"):
            mesh = frame.f_locals.get(name)
            shape = getattr(mesh, "shape", mesh)
            pairs = tuple(shape.items()) if isinstance(shape, Mapping) else ()
            if pairs and all(isinstance(n, str) and isinstance(s, int) for n, s in pairs):
                return pairs
    return ()


def _arguments(frames: Frames) -> dict[str, Any] | None:
    """Return the arguments and specs of a shard_map that JAX has compared and refused."""
    for frame, _ in reversed(frames):
        if frame.f_code.co_name == "_check_specs_vs_args":
            given = frame.f_locals
            if not all(hasattr(x, "shape") for x in given["xs"]):
                return None  # it is not about the specs: one of them is no array
            names = [_path(given["f"], given["in_tree"], n) for n in given["dyn_argnums"]]
            pairs = zip(names, given["in_specs_flat"], given["xs"], strict=True)
            return {
                "family": "arguments",
                "function": getattr(given["f"], "__name__", "the function"),
                "mesh": tuple(given["mesh"].shape.items()),
                "arguments": tuple(
                    {"path": name, "shape": tuple(x.shape), "spec": tuple(boundary.entries(spec))}
                    for name, spec, x in pairs
                ),
                "exchanged": _exchanged(given, frames),
            }
    return None


def _exchanged(given: Mapping[str, Any], frames: Frames) -> tuple[int, int] | None:
    """Return two arguments with whose specs exchanged JAX accepts the program.

    It is asked, since sizes alone cannot tell: a batch that does not divide and a weight that
    would divide are no exchange, and then the body does not fit its shards.
    """
    specs, tree = list(given["in_specs_flat"]), given["in_tree"]
    out_specs = next(
        (f.f_locals["out_specs"] for f, _ in frames if "out_specs" in f.f_locals), None
    )
    if len(specs) != tree.num_leaves or len(specs) > _MOST_EXCHANGED or out_specs is None:
        return None
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given["xs"]]
    mesh = getattr(given["mesh"], "abstract_mesh", given["mesh"])
    for a, b in itertools.combinations(range(len(specs)), 2):
        tried = list(specs)
        tried[a], tried[b] = specs[b], specs[a]
        in_specs = jax.tree.unflatten(tree, tried)
        mapped = jax.shard_map(given["f"], mesh=mesh, in_specs=in_specs, out_specs=out_specs)
        with contextlib.suppress(Exception):
            if tried != specs and jax.eval_shape(mapped, *jax.tree.unflatten(tree, shapes)):
                return a, b
    return None


def _path(f: Any, tree: Any, number: int) -> str:
    """Return what a person calls a leaf of the arguments: `params['mlp']['kernel']`."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    leaves, _ = jax.tree_util.tree_flatten_with_path(numbered)
    path = next(path for path, leaf in leaves if leaf == number)
    try:
        parameters = list(inspect.signature(f).parameters.values())
        first = parameters[path[0].idx]
        named = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    except (TypeError, ValueError, IndexError):
        named = False
    root = first.name if named else f"argument {path[0].idx}"
    return f"{root}{jax.tree_util.keystr(path[1:])}"


def _spec_in(words: str) -> str:
    found = re.search(r"P\((?:[^()]|\([^()]*\))*\)", words)
    return found[0] if found else "of it"


def _rank(words: str) -> dict[str, Any] | None:
    of_output = re.search(
        r"(out_specs\S*) is (P\(.*\)) which has length (\d+), but (.+?) has shape .*?, "
        r"which has rank (\d+)",
        words,
    )
    if of_output:
        _, spec, length, output, rank = of_output.groups()
        owner = f"the output {output.replace('*args', '...')}"
        facts = {"spec": spec, "length": int(length), "rank": int(rank), "owner": owner}
        return {"family": "rank", **facts}
    longer = re.search(r"of rank at least (\d+), but was applied to a value of rank (\d+)", words)
    if longer:
        length, rank = int(longer[1]), int(longer[2])
        facts = {"spec": _spec_in(words), "length": length, "rank": rank, "owner": "the array"}
        return {"family": "rank", **facts}
    return None


_UNEVEN = (
    # a jit's shardings, device_put; and what older JAX says of them
    r"array axis (?P<axis>\d+) is partitioned (?P<n>\d+) times, but .*?dimension size (?:is )?"
    r"(?P<size>\d+)",
    r"dimension (?P<axis>\d+) should be divisible by (?P<n>\d+), but it is equal to (?P<size>\d+)",
)


def _indivisible(words: str, frames: Frames) -> dict[str, Any] | None:
    found = next(filter(None, (re.search(pattern, words, re.S) for pattern in _UNEVEN)), None)
    if found is None:
        return None
    shape = re.search(r"(?:full shape|Got shape): \(([\d, ]*)\)", words)
    return {
        "family": "indivisible",
        "spec": _spec_in(words),
        "shape": tuple(int(n) for n in re.findall(r"\d+", shape[1])) if shape else (),
        "owner": _owner(frames),
        **{name: int(number) for name, number in found.groupdict().items()},
    }


def _owner(frames: Frames) -> str:
    """Return the argument or output of a jit that JAX was looking at; older words do not say."""
    for frame, _ in frames:
        if frame.f_code.co_name == "pjit_check_aval_sharding":
            name, among = frame.f_locals["name"], frame.f_locals["what_aval"]
            if name:
                return f"{among.split()[-1].removesuffix('s')} '{name}'"
    return "an array"
