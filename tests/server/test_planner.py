"""The planner: limits of its API, errors in words, no file is opened, a page without scripts."""

from __future__ import annotations

import html
import json
import re

import pytest

from server.page_server import page_client
from shardlab.planner.make_plan import plan
from shardlab.server.confined.lab_process import handle_request
from shardlab.server.confined.messages import ConfinedRequest
from shardlab.server.planning import plan_pool

LLAMA = {
    "model": "llama3-70b",
    "mesh": "fsdp=64,tensor=8",
    "strategy": "fsdp+tensor",
    "hardware": "tpu-v5p",
    "optimizer": "adamw",
    "batch": 1024,
    "sequence": 8192,
}
HEADER = json.dumps(
    {
        "model.layers.0.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": [64, 32],
            "data_offsets": [0, 4096],
        },
        "model.layers.1.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": [64, 32],
            "data_offsets": [4096, 8192],
        },
    }
)
UPLOAD = {"headers": [{"file": "own.safetensors", "header": HEADER, "data_bytes": 8192}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with page_client(tmp_path_factory.mktemp("data")) as client:
        yield client


def post_plan(client, **body):
    return client.post("/api/v1/plans", json=body)


def test_a_plan_has_the_figures_of_shardlab_plan(client):
    view = post_plan(client, **LLAMA).json()
    expected = plan(
        "llama3-70b",
        "fsdp=64,tensor=8",
        strategy="fsdp+tensor",
        hardware="tpu-v5p",
        optimizer="adamw",
        workload={"batch": 1024, "sequence": 8192},
    )
    assert view["bytes_per_device"] == expected.bytes_per_device
    assert view["fits"] is expected.fits is True
    assert sum(kind["bytes_per_device"] for kind in view["kinds"]) == expected.bytes_per_device
    assert len(view["rows"]) == view["n_rows"] == len(expected.rows)
    assert sum(row["bytes_per_device"] for row in view["rows"]) == sum(
        row.bytes_per_device for row in expected.rows
    )


def test_rules_replace_a_strategy(client):
    rules = "[[rules]]\npath = '.*'\nspec = \"fsdp\"\n"
    view = post_plan(client, model="llama3-8b", mesh="fsdp=8", rules=rules).json()
    assert {row["spec"] for row in view["rows"]} == {"P('fsdp')"}
    assert view["has_derived_rules"] is False


def test_the_rules_of_a_strategy_give_the_same_plan(client):
    view = post_plan(client, **LLAMA).json()
    options = {**LLAMA, "rules": view["rules_text"]}
    del options["strategy"]
    assert post_plan(client, **options).json()["bytes_per_device"] == view["bytes_per_device"]


def test_an_uploaded_header_is_a_model(client):
    view = post_plan(client, upload=UPLOAD, mesh="fsdp=4", strategy="fsdp").json()
    assert view["model"] == "own"
    assert view["rows"][0]["n_tensors"] == 2
    assert view["bytes_per_device"] == 8192 // 4


def test_a_config_alone_finds_the_preset_with_its_architecture(client):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    body = {"upload": {"config": json.dumps(config)}, "mesh": "fsdp=8", "strategy": "fsdp"}
    assert post_plan(client, **body).json()["model"] == "llama3-8b"


def test_a_config_of_no_preset_is_a_model_by_its_sizes(client):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 1000,
    }
    body = {"upload": {"config": json.dumps(config)}, "mesh": "fsdp=8", "strategy": "fsdp"}
    view = post_plan(client, **body).json()
    assert view["model"] == "llama"
    assert view["n_parameters"] == 251_200
    assert "follow from the sizes in config.json" in " ".join(view["notes"])
    for faulty in ({**config, "hidden_size": 0}, {"model_type": "bert"}, None, []):
        response = post_plan(client, **{**body, "upload": {"config": json.dumps(faulty)}})
        assert response.status_code == 422
        assert "config.json" in response.json()["error"]["fix"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mesh": "fsdp="}, "was expected here"),
        ({"mesh": "fsdp=8", "strategy": "fsdp+tensor"}, "needs a mesh axis"),
        ({"mesh": "fsdp=8", "strategy": "fsdpp"}, "fsdp"),
        ({"mesh": "fsdp=8", "strategy": None, "rules": "rules = ["}, "TOML"),
        ({"mesh": "fsdp=8", "optimizer": "adamww"}, "adamw"),
        ({"model": "llama9"}, "Unknown preset 'llama9'"),
        ({"hardware": "v9"}, "Unknown hardware"),
        ({"remat": "everything"}, "everything"),
        ({"microbatch": 1000}, "not divisible by the microbatch"),
    ],
)
def test_a_wrong_option_is_an_error_in_words(client, change, expected):
    response = post_plan(client, **{**LLAMA, **change})
    assert response.status_code == 422
    error = response.json()["error"]
    assert expected in f"{error['message']} {error.get('fix')}"


def test_no_option_opens_a_file(client, tmp_path):
    """A path in any field is an unknown name, even if the file exists."""
    for name in ("model.safetensors", "chip.toml", "rules.toml", "config.json"):
        (tmp_path / name).write_text('like = "h100"')
    for field, file in (
        ("model", "model.safetensors"),
        ("model", "config.json"),
        ("hardware", "chip.toml"),
        ("rules", "rules.toml"),
        ("strategy", "rules.toml"),
        ("optimizer", "rules.toml"),
        ("policy", "rules.toml"),
        ("remat", "rules.toml"),
    ):
        response = post_plan(client, **{**LLAMA, field: str(tmp_path / file)})
        assert response.status_code == 422, field
    page = client.get("/plan", params={"model": "/etc/passwd", "mesh": "fsdp=8"}).text
    assert "Unknown preset" in html.unescape(page)


LIMITS = [
    {"mesh": "x" * 401},
    {"model": "x" * 201},
    {"rules": "#" * 50_001},
    {"batch": 0},
    {"batch": 2**31},
    {"batch": "many"},
    {"sequence": -1},
    {"headroom": 1.0},
    {"headroom": -0.1},
    {"unknown": 1},
    {"upload": {"headers": [{"file": "f", "header": "{}", "data_bytes": -1}]}},
    {"upload": {"headers": [{"file": "f", "header": "{}", "data_bytes": 0}] * 201}},
    {"upload": {"config": "x" * 200_001}},
]


@pytest.mark.parametrize("change", LIMITS, ids=range(len(LIMITS)))
def test_every_field_has_a_limit(client, change):
    response = post_plan(client, **{**LLAMA, **change})
    assert response.status_code == 422
    assert response.json()["error"]["fields"]


@pytest.mark.parametrize(
    "header",
    ["", "{", "[]", "null", '{"w": 1}', "{" * 5000, HEADER.replace("BF16", "F7"), HEADER[:-1]],
)
def test_a_damaged_header_is_an_error(client, header):
    upload = {"headers": [{"file": "own.safetensors", "header": header, "data_bytes": 8192}]}
    response = post_plan(client, upload=upload, mesh="fsdp=4", strategy="fsdp")
    assert response.status_code == 422
    assert response.json()["error"]["message"]


def test_a_body_above_the_limit_is_refused(client):
    response = client.post("/api/v1/plans", content=b"x" * (4 * 2**20 + 1))
    assert response.status_code == 413


def test_a_pattern_that_never_ends_is_stopped(client):
    rules = "[[rules]]\npath = '(.+)+(.+)+(.+)+(.+)+x$'\nspec = \"fsdp\"\n"
    response = post_plan(client, model="llama3-8b", mesh="fsdp=8", rules=rules)
    assert response.status_code in (200, 422)


def test_plans_beyond_the_slots_are_told_to_wait(client, monkeypatch):
    monkeypatch.setattr(plan_pool, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(plan_pool, "_MAX_PROCESSES", 0)
    response = post_plan(client, **LLAMA)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    monkeypatch.undo()
    assert post_plan(client, **LLAMA).status_code == 200


def test_advice_is_queued_and_checked_before(client):
    body = {"model": "llama3-8b", "hardware": "h100", "devices": 8, "batch": 16, "sequence": 4096}
    job = client.post("/api/v1/advice", json=body).json()
    assert (job["kind"], job["state"]) == ("advice", "queued")
    assert client.post("/api/v1/advice", json={**body, "model": "x"}).status_code == 422
    assert client.post("/api/v1/advice", json={**body, "devices": 2**21}).status_code == 422
    assert client.post("/api/v1/advice", json={**body, "hardware": "/etc"}).status_code == 422


def test_advice_in_a_worker_is_the_ranking_of_shardlab_advise():
    from shardlab.planner.advice.make_advice import advise

    payload = {"model": "llama3-8b", "hardware": "h100", "devices": 8, "batch": 16}
    request = ConfinedRequest(kind="advice", payload={**payload, "sequence": 4096})
    view = json.loads(handle_request(request).result)
    expected = advise("llama3-8b", "h100", 8, batch=16, sequence=4096)
    assert [candidate["mesh"] for candidate in view["ranked"]] == [
        candidate.mesh_text for candidate in expected.ranked[:30]
    ]
    assert view["ranked"][0]["step_seconds"] == expected.best.step.expected


def test_the_page_reads_without_scripts(client):
    page = html.unescape(client.get("/plan", params=LLAMA).text)
    assert "fits: 40.5 GB of 96.0 GB on each of 512 tpu-v5p" in page
    assert "model.layers.*.mlp.down_proj.weight" in page
    assert page.count('src="data:image/svg+xml;base64,') == 2
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=", page)


def test_findings_are_on_the_page(client):
    options = {**LLAMA, "mesh": "fsdp=8", "strategy": "data-parallel", "hardware": "h100"}
    page = html.unescape(client.get("/plan", params=options).text)
    assert "does not fit" in page
    assert "Findings" in page


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("batch", "abc", "Batch must be an integer, such as 16."),
        ("sequence", "1.5", "Sequence must be an integer, such as 4096."),
        ("batch", "0", "Batch must be at least 1."),
        ("headroom", "much", "Headroom must be a number, such as 0.1."),
        ("headroom", "1", "Headroom must be less than 1."),
    ],
)
def test_a_field_that_is_no_number_is_explained(client, field, text, message):
    assert message in html.unescape(client.get("/plan", params={**LLAMA, field: text}).text)
    response = post_plan(client, **{**LLAMA, field: text})
    assert response.json()["error"]["message"] == message


MAX_QUERY = 32_000  # characters; a longer address is refused
HOSTILE = [
    "",
    "\x00",
    "<script>alert(1)</script>",
    "9" * 400,
    "x" * 50_000,
    "-1",
    "1e999",
    "NaN",
    "v5p-1024",
    "fsdp=-1",
    "((" * 200,
    "🙂",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("field", [*LLAMA, "rules", "remat", "microbatch", "headroom", "policy"])
def test_no_text_breaks_the_page(client, field, text):
    response = client.get("/plan", params={**LLAMA, field: text})
    if len(text) > MAX_QUERY:
        assert response.status_code == 414
        return
    assert response.status_code == 200
    assert 'id="planner"' in response.text
    assert "<script>alert" not in response.text
