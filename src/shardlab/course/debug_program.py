"""A case of a submission as one program that the debugger can record.

The program is the submission's own text, so that its lines keep their numbers, followed by the
inputs of the case and a function that calls the submission with them:

    run_case_args = (numpy.array([3.0, 4.0, 1.0, 2.0], 'float32'),)

    def run_case(x, mesh):
        return total(x, mesh)

Only inputs that the learner sees anyway are written into it: those of an example, and those of the
minimal failing case of a verdict.
"""

from __future__ import annotations

import ast
import base64
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.reference import Reference
from shardlab.course.attempt import find_case
from shardlab.errors import CaseNotShown
from shardlab.judge.case_request import CaseRequest
from shardlab.judge.cases import Case
from shardlab.judge.confined_reference import open_references
from shardlab.judge.judge import EXAMPLES_SEED, select_cases
from shardlab.judge.judgement import Judgement
from shardlab.judge.minimize import count_up_inputs
from shardlab.judge.protocol.values import Key, pack_value, unpack_value
from shardlab.judge.submission_source import read_submission
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.process import SandboxPool
from shardlab.sharding.spec import Spec, parse_spec

MINIMAL = "minimal failing case"
_EXAMPLE = "example "  # before the name of a case: the example of that name
_MAX_LITERALS = 64  # elements of an array that are written as numbers
_MAX_BYTES = 4 << 20  # of all inputs; a program of that size is not readable any more
_HEADER = "# " + "-" * 70


@dataclass(frozen=True, kw_only=True)
class DebugProgram:
    """A program for the recorder: its text, the function to record, and the mesh."""

    source: str
    target: str  # a function of the text; its arguments are `<target>_args`
    mesh: str  # such as data=2; empty if the program makes a mesh of its own
    title: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


def debug_program(
    problem: Problem,
    source: str | bytes,
    judgement: Judgement,
    case: str = "",
    *,
    pool: SandboxPool | None = None,
) -> DebugProgram:
    """Return a case of a judged submission as a program.

    `case` is the name of a case of the judgement (data=4), of an example (example data=4), or
    empty for the minimal failing case. Raises `CaseNotShown` for hidden inputs and for parts
    without a program, `UnknownSubmission` for an unknown name. An uploaded problem needs a `pool`
    for its reference.
    """
    submission = read_submission(source.encode() if isinstance(source, str) else source)
    if isinstance(submission, Verdict) or not _is_python(submission.text):
        raise CaseNotShown(
            "The submission cannot be loaded, so there is no run to step through.",
            where=f"submission to '{problem.slug}'",
            fix="correct what its verdict names first.",
        )
    with open_references(pool, problem) as references:
        return _write_case(problem, submission.text, judgement, case.strip().lower(), references)


def _write_case(
    problem: Problem,
    submission: str,
    judgement: Judgement,
    name: str,
    references: Mapping[int, Reference],
) -> DebugProgram:
    if name in ("", MINIMAL):
        request = _minimal_request(problem, judgement, references)
        label = MINIMAL
    else:
        request = _example_request(problem, judgement, name, references)
        label = "example"
    if request.kind == "call":
        part = request.case.part
        raise CaseNotShown(
            f"Part {part.number}, {part.call}, computes a plain value: no device runs anything.",
            where=f"submission to '{problem.slug}'",
            fix="compare the value with the expected one in the verdict.",
        )
    mesh = request.case.mesh
    place = f" on {request.case.name}" if mesh else f", {request.case.name}"
    return _ProgramText(request).write_program(
        submission, f"{problem.title}: {label}{place}", str(mesh) if mesh else ""
    )


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _minimal_request(
    problem: Problem, judgement: Judgement, references: Mapping[int, Reference]
) -> CaseRequest:
    """Return the minimal failing case with its inputs, drawn as they were for the verdict."""
    minimal = judgement.counterexample
    draw = minimal.facts.get("draw") if minimal else None
    if minimal is None or not draw or judgement.content_version != problem.content_version:
        raise CaseNotShown(
            "This judgement has no minimal failing case."
            if minimal is None
            else "The problem or the judge has changed since this judgement.",
            where=f"submission to '{problem.slug}'",
            fix="open an example, such as 'example data=2'."
            if minimal is None
            else "submit it again.",
        )
    part = problem.parts[minimal.part - 1]
    cases = select_cases(part, judgement.seed, judgement.kind == "run")
    similar = next(case for case in cases if case.number == minimal.number)
    smaller = replace(similar, seed=minimal.seed, scale=int(draw["scale"]))
    request = _draw_request(references, smaller)
    if draw["has_counted_inputs"]:
        return replace(request, inputs=count_up_inputs(request.inputs))
    return request


def _example_request(
    problem: Problem, judgement: Judgement, name: str, references: Mapping[int, Reference]
) -> CaseRequest:
    if not name.startswith(_EXAMPLE) and judgement.kind != "run":
        case = find_case(problem, kind="submit", seed=judgement.seed, name=name)
        raise CaseNotShown(
            f"The inputs of '{case.name}' are hidden.",
            where=f"submission to '{problem.slug}', part {case.part.number}",
            fix="open the minimal failing case, or an example: 'example data=2'.",
        )
    example = find_case(problem, kind="run", seed=EXAMPLES_SEED, name=name.removeprefix(_EXAMPLE))
    return _draw_request(references, example)


def _draw_request(references: Mapping[int, Reference], case: Case) -> CaseRequest:
    reference = references[case.part.number]
    return CaseRequest(case, reference, reference.inputs(case.draw))


@dataclass(frozen=True)
class _ProgramText:
    """Writes the case below the submission.

    The arrays of a case are the arguments of `run_case`, because the debugger shows those. All
    other inputs are written into the call: a traced number is no size of an array.
    """

    request: CaseRequest
    _arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def write_program(self, submission: str, title: str, mesh: str) -> DebugProgram:
        function = self.request.case.part.function
        target = _unused_name("run_case", submission)
        arguments = ", ".join(self._argument_texts())
        n_bytes = sum(array.nbytes for array in self._arrays.values())
        if n_bytes > _MAX_BYTES:
            raise CaseNotShown(
                f"The inputs of this case have {n_bytes:,} bytes; at most {_MAX_BYTES:,} fit.",
                where=title,
                fix="open a smaller case.",
            )
        parameters = [*self._arrays, *(["mesh"] if mesh else [])]
        values = [f"    {_array_source(array)},  # {name}" for name, array in self._arrays.items()]
        lines = [
            submission.rstrip("\n"),
            *("", "", _HEADER, "# Below: the case to step through, added to the submission.", ""),
            *("import jax as _case_jax", "import numpy as _case_numpy", ""),
            *(f"{target}_args = (", *values, ")"),
            *("", "", f"def {target}({', '.join(parameters)}):"),
            *(f"    {line}" for line in self._placements() if mesh),
            f"    return {function}({arguments})",
        ]
        return DebugProgram(source="\n".join(lines) + "\n", target=target, mesh=mesh, title=title)

    def _argument_texts(self) -> Iterator[str]:
        for name in self.request.case.part.arguments:
            if name == "mesh":
                yield "mesh"
                continue
            packed, arrays = pack_value(self.request.inputs[name])
            # A parameter must not hide the function, if they have one name.
            stem = f"{name}_" if name == self.request.case.part.function else name
            names = [stem] if len(arrays) == 1 else [f"{stem}_{i}" for i in range(len(arrays))]
            self._arrays.update(zip(names, arrays, strict=True))
            yield _value_source(packed, names)

    def _placements(self) -> Iterator[str]:
        """Yield the lines that shard the inputs as the judge does."""
        request = self.request.tracer_request()
        for name, spec in zip(self._arrays, request.call.input_specs, strict=True):
            entries = ", ".join(map(repr, parse_spec(spec).entries))
            sharding = f"_case_jax.NamedSharding(mesh, _case_jax.P({entries}))"
            if entries:
                yield f"{name} = _case_jax.lax.with_sharding_constraint({name}, {sharding})"


def _unused_name(name: str, submission: str) -> str:
    """Return a name for a function that the submission does not use at its top level.

    >>> _unused_name("run_case", "run_case = 1"), _unused_name("run_case", "import jax")
    ('run_case_', 'run_case')
    """
    names = compile(submission, "submission", "exec", dont_inherit=True).co_names
    while name in names or f"{name}_args" in names:
        name += "_"
    return name


def _value_source(packed: Any, array_names: list[str]) -> str:
    """Return a packed value as Python; an array is the parameter of its number."""
    value = unpack_value(packed, lambda leaf: _Name(array_names[leaf.number]))
    return _plain_source(value)


@dataclass(frozen=True)
class _Name:
    text: str


def _plain_source(value: Any) -> str:
    match value:
        case _Name(text):
            return text
        case Key(seed):
            return f"_case_jax.random.key({seed})"
        case Spec():
            return f"_case_jax.P({', '.join(map(repr, value.entries))})"
        case dict():
            items = (f"{_plain_source(k)}: {_plain_source(v)}" for k, v in value.items())
            return f"{{{', '.join(items)}}}"
        case list():
            return f"[{', '.join(map(_plain_source, value))}]"
        case tuple():
            comma = "," * (len(value) == 1)
            return f"({', '.join(map(_plain_source, value))}{comma})"
        case float() if not np.isfinite(value):
            return f"float('{value}')"
    return repr(value)


def _array_source(array: npt.NDArray[Any]) -> str:
    """Return an array as Python: its numbers if there are few, otherwise its bytes.

    >>> _array_source(np.float32([[0.1, 2]]))
    "_case_numpy.array([[0.1, 2.0]], 'float32')"
    """
    dtype = array.dtype.name
    if dtype == "bfloat16":
        return f"{_array_source(array.astype(np.float32))}.astype(_case_jax.numpy.bfloat16)"
    if 0 < array.size <= _MAX_LITERALS and np.isfinite(array).all():
        return f"_case_numpy.array({_list_source(array)}, '{dtype}')"
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()
    decode = f"__import__('zlib').decompress(__import__('base64').b64decode('{data}'))"
    return f"_case_numpy.frombuffer({decode}, '{dtype}').reshape({array.shape})"


def _list_source(array: npt.NDArray[Any]) -> str:
    if array.ndim:
        return f"[{', '.join(map(_list_source, array))}]"
    # The shortest digits of the dtype: 0.1 and not 0.10000000149011612.
    return str(array.item()) if array.dtype.kind in "biuc" else str(array[()])
