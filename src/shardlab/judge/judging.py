"""One submission from end to end: two confined processes, a request for each case, a judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.reference import Reference, load_reference
from shardlab.frames.frame import BadFrame, Frame
from shardlab.frames.values import array_bytes, pack
from shardlab.judge.cases import Case, cases_of
from shardlab.judge.grade import grade
from shardlab.judge.seen import read_seen, read_value
from shardlab.judge.values import grade_value
from shardlab.layouts.spec import Spec
from shardlab.records.judgement import CaseResult, Judgement
from shardlab.records.verdict import Verdict, most_telling
from shardlab.sandbox.guest import Ended, Guest, House, Limits

EXAMPLES_SEED = 0


def judge(
    house: House,
    problem: Problem,
    source: str,
    *,
    kind: str,
    seed: int,
    tell: Callable[[CaseResult], None] = lambda result: None,
) -> Judgement:
    """Return the judgement of one answer; `tell` hears of every case as it ends."""
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    scale = 1 if is_example else 2
    author = house.guest("author", Limits())
    runner = house.guest("runner", Limits())
    results: list[CaseResult] = []
    try:
        loaded = _loaded(author, source)
        for part in problem.parts:
            reference = load_reference(problem, part)
            for case in cases_of(part, seed, scale):
                verdicts = [loaded] if loaded else _judged(author, runner, case, reference)
                result = _result(case, verdicts, is_example)
                results.append(result)
                tell(result)
    finally:
        author.close()
        runner.close()
    return Judgement(problem.slug, problem.content_version, house.level, seed, kind, tuple(results))


def _loaded(author: Guest, source: str) -> Verdict | None:
    try:
        answer = author.ask(Frame({"do": "load"}, (source.encode(),)))
    except Ended as ended:
        return _ended(ended)
    if "error" in answer.header:
        return _raised(answer.header["error"], "CE")
    return None


def _judged(author: Guest, runner: Guest, case: Case, reference: Reference) -> list[Verdict]:
    inputs = reference.inputs(case.draw)
    try:
        if case.is_simulated:
            return _by_simulation(author, case, reference, inputs)
        if case.part.kind == "value":
            return _by_value(author, case, reference, inputs)
        return _by_program(author, runner, case, reference, inputs)
    except Ended as ended:
        return [_ended(ended)]
    except BadFrame as error:
        return [Verdict("RTE", f"The answer's process sent something else than a result: {error}.")]


def _by_value(
    author: Guest, case: Case, reference: Reference, inputs: dict[str, Any]
) -> list[Verdict]:
    data, arrays = pack(inputs)
    request = _request("call", case, data, [])
    answer = author.ask(Frame(request.header, tuple(map(array_bytes, arrays))))
    try:
        expected = reference.expected(case.draw.mesh, **inputs)
    except Exception as error:
        return _must_raise(error, answer)
    if "error" in answer.header:
        return [_raised(answer.header["error"])]
    return grade_value(case, read_value(answer), expected)


def _by_simulation(
    author: Guest, case: Case, reference: Reference, inputs: dict[str, Any]
) -> list[Verdict]:
    data, arrays = pack(inputs)
    mesh = case.draw.mesh
    request = _request("simulate", case, data, _input_specs(inputs, reference.input_specs(mesh)))
    answer = author.ask(Frame(request.header, tuple(map(array_bytes, arrays))))
    try:
        expected = reference.expected(mesh, **inputs)
    except Exception as error:
        return _must_raise(error, answer)
    if "error" in answer.header or "outputs" not in answer.header:
        return _hazards(answer) or [_raised(answer.header.get("error", {}))]
    budget = {**case.part.budget, **reference.budget(mesh, **inputs)}
    seen = read_seen(answer)
    return grade(case, seen, expected, reference.output_specs(mesh), budget) or _hazards(answer)


def _by_program(
    author: Guest, runner: Guest, case: Case, reference: Reference, inputs: dict[str, Any]
) -> list[Verdict]:
    data, arrays = pack(inputs)
    mesh = case.draw.mesh
    specs = _input_specs(inputs, reference.input_specs(mesh))
    answer = author.ask(_request("export", case, data, specs))
    try:
        expected = reference.expected(mesh, **inputs)
    except Exception as error:
        return _must_raise(error, answer)
    hazards = _hazards(answer)
    if hazards:
        return hazards
    if "error" in answer.header or not answer.buffers:
        return [_raised(answer.header.get("error", {}))]
    told = [[list(a.shape), a.dtype.name, s] for a, s in zip(arrays, specs, strict=True)]
    ran = runner.ask(
        Frame(
            {"do": "run", "mesh": _mesh(case), "arrays": told},
            (answer.buffers[0], *map(array_bytes, arrays)),
        )
    )
    if "error" in ran.header:
        return [_raised(ran.header["error"])]
    budget = {**case.part.budget, **reference.budget(mesh, **inputs)}
    seen = read_seen(ran)
    if mesh.n_devices == 1 and not seen.has_shard_map:
        # JAX leaves no sign of it in a program for one device: there the trace's word counts.
        seen = replace(seen, has_shard_map=answer.header.get("n_shard_maps", 0) > 0)
    return grade(case, seen, expected, reference.output_specs(mesh), budget)


def _request(do: str, case: Case, data: Any, specs: Sequence[str]) -> Frame:
    return Frame(
        {
            "do": do,
            "function": case.part.function,
            "order": list(case.part.arguments),
            "mesh": _mesh(case),
            "arguments": data,
            "specs": list(specs),
        }
    )


def _mesh(case: Case) -> dict[str, Any] | None:
    return case.mesh.to_json() if case.mesh else None


def _input_specs(inputs: dict[str, Any], specs: Any) -> list[str]:
    """Return the spec of each array among the inputs, in the order in which they travel."""
    found: list[str] = []
    for name, value in inputs.items():
        _, arrays = pack(value)
        given = specs.get(name, Spec())
        if isinstance(given, Spec):
            found += [str(given)] * len(arrays)
        else:
            found += [str(each) for each in _spec_leaves(given)]
    return found


def _spec_leaves(specs: Any) -> list[Spec]:
    if isinstance(specs, Spec):
        return [specs]
    each = specs.values() if isinstance(specs, dict) else specs
    return [leaf for value in each for leaf in _spec_leaves(value)]


def _result(case: Case, verdicts: list[Verdict], is_example: bool) -> CaseResult:
    told = tuple(verdicts) or (Verdict("AC", "All properties hold."),)
    mesh = ",".join(f"{k}={v}" for k, v in case.mesh.shape.items()) if case.mesh else ""
    return CaseResult(
        case.name,
        case.part.number,
        mesh,
        case.seed,
        most_telling(told),
        is_example,
        case.is_simulated,
    )


# ---------------------------------------------------------------------- what is no result at all

_OF_FINDING = {
    "hazard.deadlock": "HANG",
    "hazard.replicas_differ": "REPL",
    "hazard.mixed_collectives": "HANG",
    "spec.unknown_axis": "SPEC",
    "spec.rank": "SPEC",
    "spec.indivisible": "SPEC",
    "spec.wrong_argument": "SPEC",
}

# Families of refusals that are about which devices hold the same.
_OF_VMA = ("replication", "carry", "branches", "partly_varying")


def _hazards(answer: Frame) -> list[Verdict]:
    found = []
    for each in answer.header.get("findings", []):
        if each["severity"] != "error":
            continue
        code = _OF_FINDING.get(each["code"], "RTE")
        if each["code"] == "jax.refused" and each["cause"] in _OF_VMA:
            code = "VMA"
        where = f"line {each['where']['line']}" if each["where"] else ""
        found.append(Verdict(code, each["what"], where, each["fix"], shows=tuple(each["shows"])))
    return found


def _must_raise(error: Exception, answer: Frame) -> list[Verdict]:
    """Compare what was raised with what must be: the same kind of exception."""
    told = answer.header.get("error")
    name = type(error).__name__
    if told is None:
        return [Verdict("WA", f"It should have raised {name} ({error}), and returned a result.")]
    return [] if name in told.get("parents", []) else [_raised(told)]


def _raised(error: dict[str, Any], code: str = "RTE") -> Verdict:
    line = error.get("line")
    return Verdict(
        code,
        f"{error.get('kind', 'Something')}: {error.get('words', '')}",
        f"line {line}" if line else "",
    )


def _ended(ended: Ended) -> Verdict:
    code = {"time": "TLE", "memory": "MLE", "output": "OLE"}.get(ended.ending.why, "RTE")
    return Verdict(code, f"The answer's process ended: {ended}.")
