"""The layout explorer without scripts: the URL has the state, and every state has a page."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys

import pytest

from server.page_server import page_client
from shardlab.server.pages.layout import layout_code
from shardlab.sharding.layout import layout


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with page_client(tmp_path_factory.mktemp("data")) as client:
        yield client


def show(client, **query):
    response = client.get("/layout", params=query)
    assert response.status_code == 200, response.text
    return html.unescape(response.text)


def test_the_default_page_is_a_layout_with_its_picture(client):
    page = show(client)
    assert "each device holds [4096, 4096], 33.6 MB" in page
    assert 'src="data:image/svg+xml;base64,' in page
    assert "device 3 holds [:, 12288:16384]" in page  # the alternative text of the picture


def test_the_form_has_the_state_of_the_url(client):
    page = show(client, mesh="x=4", array="f32[8, 6]", spec="x", to="None, None")
    for name, value in (("mesh", "x=4"), ("array", "f32[8, 6]"), ("spec", "x")):
        assert f'name="{name}" value="{value}"' in page
    assert "all_gather over x" in page
    assert "jax.make_mesh((4,), ('x',))" in page


def test_an_empty_spec_is_a_replicated_array(client):
    assert "1 shard, the full array, replicated on 4 devices" in show(
        client, mesh="x=4", array="8", spec=""
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"mesh": "data=2,model="}, "The size of mesh axis 'model' was expected here."),
        ({"mesh": "data=2,model="}, "data=2,model=\n                      ^"),
        ({"array": "8x"}, "A size was expected here."),
        ({"array": "f33[8]"}, "Did you mean 'f32'?"),
        ({"mesh": "data=2", "array": "8", "spec": "dat"}, "Did you mean 'data'?"),
        ({"mesh": "data=4", "array": "6", "spec": "data"}, "not divisible by 4"),
        ({"mesh": "data=2", "array": "8", "spec": "data,data"}, "a mesh axis can shard only one"),
        ({"mesh": "data=2", "array": "8", "to": "(("}, "was expected here"),
    ],
)
def test_a_wrong_text_is_explained_with_its_position(client, query, expected):
    assert expected in show(client, **query)


HOSTILE = [
    "",
    " ",
    "\x00",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "9" * 5000,
    "x" * 30_000,
    "x=1," * 3000,
    "((((" * 500,
    f"{2**127}x{2**127}x{2**127}:f64",
    "٣x٣",
    "\u202e=2",
    "🙂=2",
    "-1",
    "x=2147483647",
    "a=2147483647,b=2",
    "1x" * 190 + "1",
    "../../etc/passwd",
    "{{7*7}}",
    "%s%n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("field", ["mesh", "array", "spec", "to"])
def test_no_text_breaks_the_page(client, field, text):
    page = client.get("/layout", params={field: text}).text
    assert 'id="explorer"' in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert len(page) < 2_000_000


def test_unknown_and_repeated_parameters_are_ignored(client):
    response = client.get("/layout?mesh=x=2&mesh=x=4&device=5&__class__=1&array=8&spec=x")
    assert response.status_code == 200
    assert "4 shards" in response.text


def test_the_python_code_creates_the_shards_in_jax():
    source = layout("8x16", "(data,model),None", "data=2,model=4", "bf16")
    target = layout("8x16", "None,model", "data=2,model=4", "bf16")
    program = layout_code(source, target) + (
        "print(x.sharding.shard_shape(x.shape), y.sharding.shard_shape(y.shape), y.dtype)\n"
    )
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["JAX_PLATFORMS"] = "cpu"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert run.stdout.split("\n")[0] == f"{source.shard_shape} {target.shard_shape} bfloat16"


def test_the_texts_of_the_page_have_no_inline_style_or_script(client):
    page = client.get("/layout").text
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=", page)
