"""Every program of the gallery opens in the lab, and so does a recording of 512 devices."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import WIDE
from shardlab.recording.example_gallery import gallery_programs

LIMIT_MS = 120_000  # ends a hang; a run takes about a second on an idle machine
TRAINING_STEP = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def loss(w, x, y):
    return lax.pmean(jnp.mean((lax.psum(x @ w, "model") - y) ** 2), "data")


def body(w, x, y):
    value, gradient = jax.value_and_grad(loss)(w, x, y)
    return value, w - 0.1 * gradient


specs = (P("model"), P("data", "model"), P("data"))
step = jax.shard_map(body, in_specs=specs, out_specs=(P(), P("model")))
example_args = ("f32[64,8]", "f32[64,64]", "f32[64,8]")
"""


def step_text(page: Page):
    return page.get_by_text(re.compile(r"^Step \d+ of \d+"))


@pytest.mark.parametrize("slug", [program.slug for program in gallery_programs()])
def test_every_program_of_the_gallery_opens_at_every_step(open_visit, slug):
    visit = open_visit(scheme="dark")
    page = visit.open(f"/lab?example={slug}")
    step_text(page).wait_for(timeout=LIMIT_MS)
    page.get_by_role("button", name="Hops").click()
    page.keyboard.press("Home")
    for _ in range(60):
        first, last = re.findall(r"\d+", step_text(page).inner_text())[:2]
        if first == last:
            break
        page.keyboard.press("ArrowRight")
        expect(step_text(page)).to_have_text(re.compile(rf"^Step {int(first) + 1} "))
    visit.check()


@pytest.fixture(scope="module")
def large_recording(tmp_path_factory) -> Path:
    """Record a training step on 512 devices with the command, and save it."""
    folder = tmp_path_factory.mktemp("recordings")
    program = folder / "training_step.py"
    program.write_text(TRAINING_STEP)
    path = folder / "step.shardlab.json"
    command = [sys.executable, "-m", "shardlab", "record", f"{program}:step"]
    command += ["--mesh", "data=64,model=8", "-o", str(path)]
    subprocess.run(command, check=True, timeout=600)
    return path


def test_a_recording_of_512_devices_opens_and_stays_readable(open_visit, large_recording):
    visit = open_visit(viewport=WIDE)
    page = visit.open("/lab?example=data_parallel")
    step_text(page).wait_for(timeout=LIMIT_MS)
    page.locator("input[type=file]").first.set_input_files(large_recording)
    picture = page.get_by_role("img", name=re.compile("on 512 devices"))
    expect(picture).to_be_visible(timeout=LIMIT_MS)
    page.keyboard.press("ArrowRight")
    expect(picture).to_be_visible()
    page.locator(".dbg-tab-panel .dbg-row").nth(1).click()  # x, another shard on every device
    expect(page.locator(".dbg-legend")).to_contain_text("64 of 512 groups shown")
    visit.take_screenshot("lab-512")
    visit.check()
