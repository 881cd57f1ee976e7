"""The TypeScript port of the layout arithmetic gives what shardlab.sharding gives, errors included.

The built file `layout_check.js` runs in Node and in Chromium, whichever is installed, on the same
random cases.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from shardlab.errors import LabError
from shardlab.server.pages.layout import layout_code
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.layout_picture import layout_picture
from shardlab.sharding.layout_render import device_text
from shardlab.sharding.reshard import ReshardStep, _cost_text, reshard
from shardlab.sharding.shape import parse_array

BUILD = Path(__file__).parents[2] / "src/shardlab/server/static/build"
ENTRY = "layout_check.js"
N_CASES = 700
NAMES = ["data", "model", "x", "y", "fsdp", "tensor", "größe", "a.b-c", "_stage", "轴"]
DTYPES = ["bf16", "f32", "float64", "int4", "pred", "key<fry>", "fp16", "s8", "float8_e4m3fn"]
WRONG = ["", ",", "=", "(", ")", "]", "'", '"', " x", "None", "-3", "\t", "\u202e", "٣", "9" * 120]


def random_case(rng: random.Random) -> dict[str, Any]:
    """Return a case that is valid in two of three draws."""
    names = rng.sample(NAMES, rng.randint(1, 4))
    sizes = [rng.choice([1, 2, 2, 3, 4, 8, 16]) for _ in names]
    rank = rng.randint(0, 4)
    shape = [rng.choice([1, 2, 3, 4, 6]) * rng.choice([16, 48, 64, 96]) for _ in range(rank)]
    case = {
        "mesh": ",".join(
            f"{name}{rng.choice(['=', ':', ' = '])}{size}"
            for name, size in zip(names, sizes, strict=True)
        ),
        "array": random_array_text(rng, shape),
        "spec": random_spec_text(rng, names, rank),
        "to": random_spec_text(rng, names, rank) if rng.random() < 0.5 else None,
        "devices": [rng.randrange(4096) for _ in range(3)],
    }
    return spoil(rng, case) if rng.random() < 0.35 else case


def random_array_text(rng: random.Random, shape: list[int]) -> str:
    dtype = rng.choice(DTYPES)
    if rng.random() < 0.5 or not shape:
        return f"{dtype}[{rng.choice([',', ', ']).join(map(str, shape))}]"
    separator = rng.choice(["x", ",", "×", "*", " x "])
    return separator.join(map(str, shape)) + (f":{dtype}" if rng.random() < 0.7 else "")


def random_spec_text(rng: random.Random, names: list[str], rank: int) -> str:
    free = rng.sample(names, len(names))
    entries = []
    for _ in range(rng.randint(0, rank)):
        taken = [free.pop() for _ in range(min(len(free), rng.choice([0, 1, 1, 2])))]
        quoted = [repr(name) if rng.random() < 0.3 else name for name in taken]
        entries.append(f"({','.join(quoted)})" if len(quoted) > 1 else (*quoted, "None")[0])
    text = ", ".join(entries)
    return f"P({text})" if rng.random() < 0.3 else text


def spoil(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """Return the case with one text damaged, or with a size or name that does not fit."""
    field = rng.choice(["mesh", "array", "spec"])
    text = case[field]
    start = rng.randint(0, len(text))
    damage = rng.choice(
        [
            rng.choice(WRONG),
            rng.choice(NAMES),
            rng.choice(["modle", "Data", "dat", "tensr", "7", "0", "-1", "99999999999", "1_0"]),
            rng.choice("abcxyz0123456789[](){}:;=+-*/#'\" \n\u00a0\ue000𝟛🙂") * rng.randint(1, 90),
        ]
    )
    return {**case, field: text[:start] + damage + text[start + rng.randint(0, 2) :]}


def describe_in_python(case: dict[str, Any]) -> dict[str, Any]:
    """Return what `describeLayout` of web/src/explorer/describe_layout.ts returns."""
    try:
        shape, dtype = parse_array(case["array"])
        source = layout(shape, case["spec"], case["mesh"], dtype)
        described = describe(source, case["devices"])
        if case["to"] is None:
            return described
        target = layout(shape, case["to"], source.mesh, dtype)
        steps = [describe_step(step) for step in reshard(source, target)]
        return {**described, "python": layout_code(source, target), "steps": steps}
    except LabError as error:
        return {"error": error.to_json()}


def describe(source: Layout, positions: list[int]) -> dict[str, Any]:
    return {
        "spec": str(source.spec),
        "mesh": str(source.mesh),
        "dtype": source.dtype.name,
        "shape": [str(size) for size in source.shape],
        "shard_shape": [str(size) for size in source.shard_shape],
        "shard_counts": list(source.shard_counts),
        "n_shards": source.n_shards,
        "n_replicas": source.n_replicas,
        "bytes_per_device": str(source.bytes_per_device),
        "array_bytes": str(source.array_bytes),
        "total_bytes": str(source.total_bytes),
        "facts": list(layout_picture(source).facts),
        "python": layout_code(source),
        "devices": [describe_device(source, n % source.n_devices) for n in positions],
    }


def describe_device(source: Layout, device: int) -> dict[str, Any]:
    shard = source.shard_coordinates(device)
    return {
        "device": device,
        "coordinate": list(source.mesh.coordinate(device)),
        "shard": list(shard),
        "index": [[str(part.start), str(part.stop)] for part in source.index(device)],
        "holders": list(islice(source.shard_devices(shard), 8)),
        "text": device_text(source, device),
    }


def describe_step(step: ReshardStep) -> dict[str, Any]:
    texts = {"sent_bytes": str(step.sent_bytes), "total_sent_bytes": str(step.total_sent_bytes)}
    return {**step.to_json(), **texts, "cost": _cost_text(step)}


def all_cases() -> list[dict[str, Any]]:
    rng = random.Random(20261118)
    return [*EDGE_CASES, *(random_case(rng) for _ in range(N_CASES))]


def edge_case(mesh: str, array: str, spec: str = "", to: str | None = None) -> dict[str, Any]:
    return {"mesh": mesh, "array": array, "spec": spec, "to": to, "devices": [0, 5, 4095]}


EDGE_CASES = [
    edge_case("data=2,model=4", "4096x16384:bf16", "None,model", "data"),
    edge_case("()", "[]"),
    edge_case("x=2147483647", "f32[2147483647]", "x"),
    edge_case("x=65536,y=65536", "8"),
    edge_case(",".join(f"a{n}=1000000" for n in range(25)), "8"),
    edge_case("''=2", "8"),
    edge_case("'a\x07'=2", "8"),
    edge_case("x=2", f"{2**127}x{2**127}:f64", "x"),
    edge_case("x=2", f"{2**128}"),
    edge_case("x=2", "-5x3"),
    edge_case("x=0", "8"),
    edge_case("d=8", "1250:int8"),  # 1.25 kB is a tie: Python rounds it to the even digit
    edge_case("d=1", "1150:int8"),
    edge_case("d=1", "1350:int8"),
    edge_case("d=1", "999960:int8"),
    edge_case("a=2,b=2,c=2,d=2", "64x64x64", "(a,b),c,d", "d,(b,a),c"),
    edge_case("a=2,b=2,c=2,d=2,e=2", "64x64x64", "(a,b),(c,e),d", "d,(b,a),(e,c)"),
    edge_case("a=4,b=2", "256x128", "a", "b"),
    edge_case("a=2,b=3", "36x36", "a", "b"),
    edge_case("a=8,b=2,c=4", "64x64x64", "(a,b),c", "c,None,(b,a)"),
    edge_case("data=2", "4x4:f33"),
    edge_case("data=2", "8" * 20 + "x" + "9" * 60 + "q"),
    edge_case("data=2," + "model" * 60, "8"),
    edge_case("data=2", "8", "(data,None)"),
    edge_case("data=2", "8", "data,data"),
    edge_case("data=2", "8x8", "(data,data)"),
    edge_case("data=2", "8", "None,data"),
    edge_case("data=2", "()", "data"),
    edge_case("data=2", "8x8", "None,None,data"),
    edge_case("data=2,model=4", "6x8", "model"),
    edge_case("data=2,model=4", "6x8", "(data,model)"),
    edge_case("modl=2,model=4", "6x8", "mdel"),
    edge_case("data=2", "8", "x" * 210),
    edge_case("data=2", "bf16[4096", "data"),
    edge_case("data=2", "f32 [8, 6 ", "data"),
    edge_case("a" * 210 + "=2", "8", "a" * 205),
]


def compare(results: list[dict[str, Any]]) -> None:
    cases = all_cases()
    assert len(results) == len(cases)
    for case, result in zip(cases, results, strict=True):
        assert result == describe_in_python(case), f"case {case}"


def test_cases_cover_layouts_reshards_and_every_error() -> None:
    results = [describe_in_python(case) for case in all_cases()]
    codes = {result["error"]["code"] for result in results if "error" in result}
    assert codes == {
        "layout.invalid_syntax",
        "layout.invalid_size",
        "layout.invalid_type",
        "layout.unknown_axis",
        "layout.duplicate_spec_axis",
        "layout.spec_too_long",
        "layout.indivisible",
    }
    assert sum("error" not in result for result in results) > N_CASES / 3
    kinds = {step["kind"] for result in results for step in result.get("steps", ())}
    assert kinds == {"slice", "all_gather", "all_to_all", "collective_permute"}


def test_port_in_node_equals_python() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed; the test in Chromium compares the same cases")
    program = (
        f"await import({json.dumps((BUILD / ENTRY).as_uri())});"
        "let text = ''; for await (const chunk of process.stdin) text += chunk;"
        "console.log(JSON.stringify(JSON.parse(text).map(describeLayout)));"
    )
    run = subprocess.run(
        [node, "--input-type=module", "-e", program],
        input=json.dumps(all_cases()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    compare(json.loads(run.stdout))


def test_port_in_chromium_equals_python(browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    # Every request is answered here: no server, and nothing leaves the machine.
    page.route("**/*", answer_from_build_folder)
    page.goto("http://localhost/page.html")
    page.add_script_tag(url=f"/{ENTRY}", type="module")
    page.wait_for_function("globalThis.describeLayout !== undefined")
    results = page.evaluate("cases => JSON.stringify(cases.map(describeLayout))", all_cases())
    context.close()
    compare(json.loads(results))


def answer_from_build_folder(route: Any) -> None:
    name = route.request.url.rpartition("/")[2]
    if name == "page.html":
        route.fulfill(body="<!doctype html><title>test</title>", content_type="text/html")
    else:
        route.fulfill(path=BUILD / name, content_type="text/javascript")
