"""A real server: submissions are judged by its workers, live, and shown with their sentence."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_server import PATIENCE_SECONDS, LabServer

PROBLEMS = Path(__file__).parents[2] / "src" / "shardlab" / "catalogue" / "problems"
PSUM = PROBLEMS / "c-collectives" / "shard-map-psum"
PRINTING = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]

    def body(y):
        jax.debug.print("local sum {s}", s=jnp.sum(y))
        return jax.lax.psum(jnp.sum(y), axis)

    return jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec())(
        x
    )
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    with LabServer(folder) as server:
        server.folder = folder
        yield server


def submit(server, slug, source, kind="submit"):
    """Submit as the page does and return its number and the page when it is judged."""
    url = f"/practice/{slug}"
    response = server.client.post(f"{url}/{kind}", data={"source": source})
    assert response.status_code == 303
    number = server.client.get(
        "/api/v1/practice/submissions", params={"problem": slug, "limit": 1}
    ).json()[0]["number"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        state = server.client.get(f"/api/v1/practice/submissions/{number}").json()
        if state["state"] not in ("queued", "running"):
            break
        time.sleep(0.1)
    assert state["state"] == "judged", state
    return number, html.unescape(server.client.get(f"{url}?submission={number}").text)


@pytest.mark.parametrize(
    ("slug", "wrong", "code", "sentences"),
    [
        (
            "c-collectives/shard-map-psum",
            "check_turned_off",
            "REPLICAS",
            ["which add up to the expected", "a psum is missing", "return jax.lax.psum(value"],
        ),
        (
            "c-collectives/shard-map-psum",
            "whole_array",
            "WA",
            ["off by exactly 2x, the size of 'data': reduced twice?"],
        ),
        (
            "e-tensor-parallel/row-parallel-linear",
            "bias_before_psum",
            "WA",
            ["argument b is added 2 times, the size of 'model'"],
        ),
        ("c-collectives/shard-map-psum", "only_where_nonzero", "HANG", ["block forever"]),
    ],
)
def test_a_wrong_submission_shows_why_it_is_wrong(server, slug, wrong, code, sentences):
    folder = PROBLEMS / slug
    _, page = submit(server, folder.name, (folder / "wrong" / f"{wrong}.py").read_text())
    headline = re.search(r'<div class="verdict-head bad".*?</div>', page, re.DOTALL)[0]
    assert f'<span class="code">{code}</span>' in headline
    for sentence in sentences:
        assert sentence in page
    assert 'class="rung failed"' in page


def test_the_minimal_failing_case_shows_every_device(server):
    _, page = submit(server, PSUM.name, (PSUM / "wrong" / "whole_array.py").read_text())
    case = re.search(r'id="failing-case".*?</section>', page, re.DOTALL)[0]
    assert "<code>shard_map_psum(x, mesh)</code> on <code>data=2</code>" in case
    assert case.count('<li class="device wrong">') == 2
    picture = server.client.get(re.search(r'href="(/[^"]*counterexample\.svg)"', case)[1])
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "device 1" in picture.text


def test_a_pass_is_in_the_terminals_history_and_leads_on(server):
    number, page = submit(server, PSUM.name, (PSUM / "solution.py").read_text())
    assert "Same result on 9 meshes and, simulated, on data=64 and data=512" in page
    assert 'id="next-problem"' in page
    assert page.count('class="rung passed"') == 14
    terminal = subprocess.run(
        [sys.executable, "-m", "shardlab", "practice", "history", PSUM.name],
        env={**os.environ, "SHARDLAB_DATA": str(server.folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(rf"{number}\s.*AC\b.*accepted", terminal.stdout)


def test_what_devices_print_is_shown_by_device(server):
    _, page = submit(server, PSUM.name, PRINTING, "run")
    printed = re.search(r'<dl class="printed-devices">.*?</dl>', page, re.DOTALL)[0]
    assert "device 0 (data=0)" in printed
    assert "device 1 (data=1)" in printed
    assert "local sum" in printed


def test_a_result_is_streamed_case_by_case(server):
    response = server.client.post(
        f"/api/v1/practice/problems/{PSUM.name}/submissions",
        json={"source": (PSUM / "solution.py").read_text()},
    )
    assert response.status_code == 202
    number = response.json()["number"]
    url = f"/practice/{PSUM.name}/submissions/{number}/events"
    with server.client.stream("GET", url) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = "".join(stream.iter_text())
    *messages, last = text.removesuffix("\n\n").split("\n\n")
    assert last == f"event: finished\ndata: {number}"
    n_passed = [message.count('class="rung passed"') for message in messages]
    assert n_passed == sorted(n_passed)
    assert n_passed[-1] == 14
    assert any(0 < n < 14 for n in n_passed)


def test_one_case_is_replayed_and_not_stored(server):
    number, _ = submit(server, PSUM.name, (PSUM / "wrong" / "whole_array.py").read_text())
    before = server.client.get("/api/v1/practice/submissions").json()
    url = f"/practice/{PSUM.name}/submissions/{number}/replay"
    response = server.client.post(url, data={"part": "2", "case": "2"})
    assert response.status_code == 303
    deadline = time.monotonic() + PATIENCE_SECONDS
    page = ""
    while "One case, judged again" not in page and time.monotonic() < deadline:
        page = server.client.get(response.headers["location"]).text
        time.sleep(0.1)
    assert "0 of 1 case passed" in page
    assert server.client.get("/api/v1/practice/submissions").json() == before


def test_the_minimal_failing_case_opens_in_the_debugger(server):
    number, _ = submit(server, PSUM.name, (PSUM / "wrong" / "whole_array.py").read_text())
    url = f"/practice/{PSUM.name}/submissions/{number}/debug"
    response = server.client.post(url, data={})
    assert response.status_code == 303
    waiting = response.headers["location"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while response.headers.get("location", "").startswith(waiting) or response.status_code == 200:
        assert time.monotonic() < deadline
        response = server.client.get(waiting)
        assert "cannot be opened" not in response.text
        time.sleep(0.1)
    assert response.headers["location"].startswith("/lab?recording=")
    recording_id = response.headers["location"].partition("=")[2]
    recording = server.client.get(f"/api/v1/recordings/{recording_id}").json()
    assert recording["title"].startswith(f"Submission {number}, ")
    assert recording["title"].endswith("minimal failing case on data=2")
