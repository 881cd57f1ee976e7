"""The story of the planner: sliders, two plans side by side, own files, the ranking of meshes."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import expect

from browser.conftest import SCREENS, WIDE

LLAMA = (
    "/plan?model=llama3-70b&mesh=fsdp=64,tensor=8&strategy=fsdp%2Btensor&optimizer=adamw"
    "&batch=1024&sequence=8192&hardware=tpu-v5p"
)


def open_planner(open_visit, path=LLAMA, **options):
    visit = open_visit(**options)
    page = visit.open(path)
    page.locator(".verdict").wait_for()
    return visit, page


def verdict_is(page, text):
    page.wait_for_function(
        "text => document.querySelector('.verdict')?.textContent.includes(text)", arg=text
    )


def test_a_slider_changes_the_plan(open_visit):
    visit, page = open_planner(open_visit)
    verdict_is(page, "fits: 40.5 GB of 96.0 GB on each of 512 tpu-v5p")
    page.get_by_label("Size of mesh axis fsdp, as a power of two").fill("4")
    verdict_is(page, "on each of 128 tpu-v5p")
    assert page.input_value("#mesh") == "fsdp=16,tensor=8"
    visit.check()


def test_a_pinned_plan_is_compared_and_stays_in_the_url(open_visit):
    visit, page = open_planner(open_visit)
    page.get_by_role("button", name="Pin this plan").click()
    page.select_option("#optimizer", "adafactor")
    page.locator(".kinds td.less").first.wait_for()
    assert "optimizer: adamw adafactor" in page.locator(".pin-text").inner_text()
    assert page.locator(".memory-bar").count() == 2
    page.wait_for_function("() => location.search.includes('pin=')")
    assert "optimizer=adamw" in parse_qs(urlsplit(page.url).query)["pin"][0]
    differences = page.locator(".kinds td.less").all_inner_texts()
    page.reload()
    page.locator(".kinds td.less").first.wait_for()
    assert page.locator(".kinds td.less").all_inner_texts() == differences
    page.get_by_role("button", name="Unpin").click()
    assert page.locator(".memory-bar").count() == 1
    visit.check()


def test_a_plan_under_way_is_visible_and_cannot_be_pinned(open_visit):
    visit, page = open_planner(open_visit)
    waiting = []
    page.route("**/api/v1/plans", lambda route: waiting.append(route))
    page.select_option("#optimizer", "adafactor")
    page.get_by_text("Computing…").wait_for()
    pin = page.get_by_role("button", name="Pin this plan")
    expect(pin).to_be_disabled()
    expect(page.locator(".computing")).to_have_css("opacity", "1")
    visit.take_screenshot("plan-computing")
    before = page.locator(".verdict").inner_text()
    waiting[0].continue_()
    expect(page.get_by_text("Computing…")).to_have_count(0)
    assert page.locator(".verdict").inner_text() != before
    pin.click()
    assert "Pinned. Change the mesh" in page.locator(".pin-text").inner_text()
    page.get_by_role("columnheader", name="Difference").wait_for()
    assert set(page.locator(".kinds td:last-child").all_inner_texts()) == {"same"}
    visit.check()


def test_a_plan_that_jax_rejects_says_so_in_its_first_words(open_visit):
    rules = quote('[[rules]]\npath = ".*"\nspec = "tensor"\n')
    path = f"/plan?model=llama3-8b&mesh=fsdp=8,tensor=3&rules={rules}&hardware=tpu-v5p"
    visit, page = open_planner(open_visit, path)
    verdict_is(page, "fits in memory, but JAX rejects it: ")
    assert "fails" in page.locator(".verdict").get_attribute("class")
    assert "JAX rejects it" in page.locator(".findings").inner_text()
    visit.check()


def test_the_table_sorts_by_a_column(open_visit):
    visit, page = open_planner(open_visit)
    names = page.locator(".tensors tbody th code")
    page.get_by_role("button", name="Tensor", exact=True).click()
    texts = names.all_inner_texts()
    assert texts == sorted(texts)
    header = page.locator('.tensors th[aria-sort="ascending"]')
    assert "Tensor" in header.inner_text()
    visit.check()


def test_an_error_is_explained_and_the_last_plan_stays(open_visit):
    _, page = open_planner(open_visit)
    page.fill("#mesh", "fsdp=64")
    page.locator(".message.bad").wait_for()
    assert "needs a mesh axis for its part 'tensor'" in page.locator(".message.bad").inner_text()
    assert page.locator(".tensors").is_visible()
    # The verdict is of the plan before, so it is not shown beside the error.
    assert page.locator(".verdict").count() == 0
    page.get_by_text("Showing the last valid plan, of llama3-70b").wait_for()
    page.fill("#mesh", "fsdp=64,tensor=8")
    verdict_is(page, "fits: 40.5 GB")


def test_a_refused_upload_takes_the_verdict_of_the_plan_before_away(open_visit, tmp_path):
    visit, page = open_planner(open_visit)
    path = tmp_path / "own.safetensors"
    path.write_bytes(b"no header")
    page.locator("input[type=file]").set_input_files(path)
    page.locator(".message.bad").wait_for()
    assert page.locator(".verdict").count() == 0
    visit.take_screenshot("plan-refused-upload")


def test_an_uploaded_file_sends_its_header_alone(open_visit, tmp_path):
    tensor = {"dtype": "F32", "shape": [1024, 1024], "data_offsets": [0, 4194304]}
    header = json.dumps({"mlp.up.weight": tensor}).encode()
    path = tmp_path / "own.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x07" * 4194304)
    visit, page = open_planner(open_visit, "/plan?mesh=fsdp=4&strategy=fsdp&model=llama3-8b")
    with page.expect_request("**/api/v1/plans") as sent:
        page.set_input_files("#files", str(path))
    assert len(sent.value.post_data) < 1000
    page.locator(".summary", has_text="own,").wait_for()
    assert page.locator(".tensors tbody code").first.inner_text() == "mlp.up.weight"
    visit.check()


def test_the_ranking_of_meshes_can_be_used(open_visit):
    visit, page = open_planner(open_visit, LLAMA.replace("llama3-70b", "llama3-8b"))
    page.fill("#advice-devices", "8")
    page.get_by_role("button", name="Rank meshes and strategies").click()
    first = page.locator(".ranking tbody tr").first
    first.wait_for(timeout=120_000)
    mesh = first.locator("code").inner_text()
    memory = first.locator("td.number").nth(1).inner_text()
    expect(page.locator(".advice .note:not(.ranking-order)").first).to_contain_text(
        "its own remat policy and microbatches"
    )
    first.get_by_role("button").click()
    # With the row's remat policy and microbatches the plan has the row's memory.
    verdict_is(page, f"{memory} of 96.0 GB on each of 8 tpu-v5p")
    assert page.input_value("#mesh") == mesh
    visit.check()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fits", LLAMA),
        (
            "does-not-fit",
            "/plan?model=mixtral-8x7b&mesh=fsdp=8&strategy=data-parallel&optimizer=adamw"
            "&batch=16&sequence=4096&hardware=h100",
        ),
        ("many-tensors", "/plan?model=deepseek-v3&mesh=fsdp=256&strategy=fsdp&hardware=h200"),
        ("pinned", LLAMA + "&pin=model%3Dllama3-8b%26mesh%3Dfsdp%3D8%26strategy%3Dfsdp"),
    ],
)
@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
def test_every_plan_fits_the_screen_and_is_accessible(open_visit, name, path, scheme, viewport):
    visit, page = open_planner(open_visit, path, scheme=scheme, viewport=viewport)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert visit.find_accessibility_faults() == []
    size = "wide" if viewport == WIDE else "narrow"
    visit.take_screenshot(f"plan-{name}-{size}-{scheme}")
    visit.check()
