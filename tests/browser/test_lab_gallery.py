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
MAX_STEPS = 60
# Presses the key in the page, and returns the number of each step: that saves a round trip to the
# browser for each.
STEP_THROUGH = f"""async (limit) => {{
  const text = () => document.querySelector(".dbg-step-text").textContent;
  const read = () => text().match(/\\d+/g).slice(0, 2).map(Number);
  const key = {{ key: "ArrowRight", bubbles: true }};
  const steps = [read()];
  const end = Date.now() + limit;
  while (steps.at(-1)[0] < Math.min(steps[0][1], {MAX_STEPS})) {{
    document.body.dispatchEvent(new KeyboardEvent("keydown", key));
    while (read()[0] === steps.at(-1)[0]) {{
      if (Date.now() > end) return steps;
      await new Promise(requestAnimationFrame);
    }}
    steps.push(read());
  }}
  return steps;
}}"""
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
    expect(step_text(page)).to_have_text(re.compile("^Step 1 of"))
    steps = page.evaluate(STEP_THROUGH, LIMIT_MS)
    assert [first for first, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) == min(steps[0][1], MAX_STEPS)
    visit.check()


@pytest.mark.parametrize(
    ("slug", "code"),
    [
        ("forgotten_psum", "hazard.replicas_differ"),
        ("psum_twice", "hazard.mesh_dependent"),
        ("deadlock_in_branch", "hazard.deadlock"),
        ("mismatched_collectives", "hazard.mismatched_collectives"),
        ("psum_of_gradient", "hazard.psum_of_replicated"),
        ("permutation_axis_order", "hazard.ppermute_axis_order"),
        ("constraint_replicates", "hazard.constraint_replicates"),
    ],
)
def test_the_findings_of_a_hazard_are_in_their_tab(open_visit, slug, code):
    visit = open_visit()
    page = visit.open(f"/lab?example={slug}")
    step_text(page).wait_for(timeout=LIMIT_MS)
    page.get_by_role("tab", name=re.compile("Findings")).click()
    expect(page.locator(".dbg-tab-panel")).to_contain_text(code)
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
    # Hundreds of different values have a pattern on the mesh; as groups only some of them fit.
    expect(page.get_by_role("button", name="Mesh", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.locator(".dbg-legend")).not_to_contain_text("groups shown")
    page.get_by_role("button", name="Groups", exact=True).click()
    expect(page.locator(".dbg-legend")).to_contain_text("64 of 512 groups shown")
    visit.take_screenshot("lab-512")
    visit.check()


PSUM_OF_MANY = """
import jax
from jax.sharding import PartitionSpec as P


def total(x):
    part = x.sum(0)
    return jax.lax.psum(part, "data")


step = jax.shard_map(total, in_specs=P("data"), out_specs=P())
example_args = ("f32[512,512]",)
"""


def open_psum(open_visit, tmp_path, mesh: str, **options):
    """Run a psum on a mesh and go to its first hop."""
    visit = open_visit(**options)
    page = visit.open("/lab?example=data_parallel")
    step_text(page).wait_for(timeout=LIMIT_MS)
    program = tmp_path / "psum_of_many.py"
    program.write_text(PSUM_OF_MANY)
    page.locator("#dbg-file").set_input_files(program)
    page.get_by_label("Mesh", exact=True).fill(mesh)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("tab", name="Collectives").click()
    page.locator(".dbg-tab-panel .dbg-row").first.click(timeout=LIMIT_MS)
    page.get_by_role("button", name="Step forward").click()
    return visit, page


@pytest.mark.screenshot
@pytest.mark.parametrize("devices", [64, 512])
def test_a_psum_of_many_devices_shows_who_holds_what(open_visit, tmp_path, devices):
    visit, page = open_psum(open_visit, tmp_path, f"data={devices}", motion="reduce")
    expect(page.get_by_role("img", name=f"{devices} by {devices}")).to_be_visible()
    strips = page.locator(".dbg-strip")
    expect(strips).to_have_count(3)
    expect(strips.nth(1)).to_contain_text("Device 1")
    expect(page.locator(".dbg-delivery").first).to_have_text(
        f"chunk {devices - 1}: share of device 0, added"
    )
    # The end of the first phase: each device has one complete chunk.
    move_to_hop(page, devices - 1)
    expect(strips.nth(1)).to_contain_text(f"1 of {devices} complete")
    expect(page.locator(".dbg-transfer")).to_contain_text("Phase 1 of 2, reduce-scatter")
    move_to_hop(page, devices + devices // 2)
    expect(page.locator(".dbg-transfer")).to_contain_text("Phase 2 of 2, all-gather")
    if devices == 64:
        visit.take_screenshot("lab-psum-64")
    move_to_hop(page, 2 * (devices - 1))
    expect(strips.nth(1)).to_contain_text(f"{devices} of {devices} complete")
    visit.check()


def move_to_hop(page: Page, hop: int) -> None:
    page.get_by_label("Hop", exact=True).fill(str(hop))


def test_the_device_in_focus_is_chosen_by_keyboard_and_by_the_matrix(open_visit, tmp_path):
    visit, page = open_psum(open_visit, tmp_path, "data=64", motion="reduce")
    focus = page.locator(".dbg-strip.is-focus")
    page.get_by_role("button", name="Next device").press("Enter")
    expect(focus).to_contain_text("Device 2")
    page.get_by_role("button", name="Previous device").press("Enter")
    page.get_by_role("button", name="Previous device").press("Enter")
    expect(focus).to_contain_text("Device 0")
    matrix = page.get_by_role("img", name="64 by 64")
    side = matrix.bounding_box()["height"]
    matrix.hover(position={"x": side * 32.5 / 64, "y": side * 40.5 / 64})
    expect(page.locator(".dbg-lens")).to_contain_text("device 40, chunk 32: only its own share")
    matrix.click(position={"x": side * 32.5 / 64, "y": side * 40.5 / 64})
    expect(focus).to_contain_text("Device 40")
    assert visit.find_accessibility_faults() == []
    visit.check()


def test_of_many_equal_groups_one_is_drawn(open_visit, tmp_path):
    visit, page = open_psum(open_visit, tmp_path, "data=8,model=8", motion="reduce")
    group = page.get_by_label("Group")
    expect(group).to_contain_text("1 of 8: 0, 8, …")
    expect(page.locator(".dbg-transfer")).to_contain_text("device 0 sends chunk 7 to device 8")
    group.select_option("3")
    expect(page.locator(".dbg-transfer")).to_contain_text("device 3 sends chunk 7 to device 11")
    visit.check()
