"""Section `lab-opening`: a recording of a training step on 512 devices opens in the program lab.

Real Chromium on a real server: from the start of the navigation to the page that shows step 1, with
an empty cache. The peer is a recording of 4 devices, opened alternately.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.options import Options
from benchmarks.report import Goal, Section
from benchmarks.web_server import running_server

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_MESHES = {"512 devices": "data=64,model=8", "4 devices": "data=2,model=2"}
_PROGRAM = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def loss(weights, x, y):
    for up, down in weights:
        x = x + lax.psum(jax.nn.gelu(x @ up) @ down, "model")
    return lax.pmean(jnp.mean((x - y) ** 2), "data")


def body(weights, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


specs = [(P(None, "model"), P("model"))] * 2
step = jax.shard_map(body, in_specs=(specs, P("data"), P("data")), out_specs=(P(), specs))
example_args = ([("f32[16,64]", "f32[64,16]")] * 2, "f32[128,16]", "f32[128,16]")
"""


def measure_openings(options: Options) -> Section:
    """Record on both meshes, upload, and open each recording alternately."""
    section = Section("A recording opens", ["recording", "kB of JSON", "ms, median", "min", "max"])
    chromium = os.environ.get("SHARDLAB_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        note = "Chromium is not installed"
        section.goals = [Goal("a recording of 512 devices opens", 1.0, None, unit=" s", note=note)]
        return section
    bodies = {name: _record(mesh) for name, mesh in _MESHES.items()}
    with running_server("/lab") as server:
        ids = {name: _upload(server.url, body) for name, body in bodies.items()}
        times = _open_alternately(chromium, server.url, ids, max(5, options.rounds))
    for name, seconds in times.items():
        cells = (statistics.median(seconds), min(seconds), max(seconds))
        kilobytes = f"{len(bodies[name]) / 1e3:.0f}"
        section.rows.append([name, kilobytes, *(f"{value * 1e3:.0f}" for value in cells)])
        section.data.append({"recording": name, "seconds": seconds})
    large = statistics.median(times["512 devices"])
    section.goals = [Goal("a recording of 512 devices opens", 1.0, large, unit=" s")]
    return section


def _record(mesh: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        program, output = Path(folder, "program.py"), Path(folder, "step.json")
        program.write_text(_PROGRAM)
        command = [sys.executable, "-m", "shardlab", "record", f"{program}:step"]
        subprocess.run([*command, "--mesh", mesh, "-o", str(output)], check=True, timeout=600)
        return output.read_bytes()


def _upload(url: str, body: bytes) -> str:
    with urllib.request.urlopen(f"{url}/", timeout=60) as response:
        cookie = response.headers["set-cookie"].split(";")[0]
        token = re.search(r'csrf-token" content="(\w+)"', response.read().decode())
    assert token is not None
    headers = {"Cookie": cookie, "X-CSRF-Token": token[1]}
    headers["Content-Type"] = "application/octet-stream"
    request = urllib.request.Request(f"{url}/api/v1/recordings/files", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["id"])


def _open_alternately(
    chromium: str, url: str, ids: dict[str, str], n_rounds: int
) -> dict[str, list[float]]:
    from playwright.sync_api import sync_playwright

    times: dict[str, list[float]] = {name: [] for name in ids}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        for _ in range(n_rounds):
            for name, recording in ids.items():
                page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                start = time.perf_counter()
                page.goto(f"{url}/lab?recording={recording}", wait_until="commit")
                page.get_by_text(re.compile("^Step 1 of")).wait_for(timeout=60_000)
                times[name].append(time.perf_counter() - start)
                page.context.close()
        browser.close()
    return times
