"""`--config` of plan and advise: what it fills in, what overrides it, what the report says."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from planner.configs.sample_files import (
    KERAS,
    KERAS_MODEL,
    MAXTEXT,
    MEGATRON,
    QWEN3_CONFIG,
    TORCHTITAN,
)
from shardlab.cli import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {
        "run.yml": MAXTEXT,
        "train.sh": MEGATRON,
        "train.toml": TORCHTITAN,
        "config.json": json.dumps(QWEN3_CONFIG),
        "layouts.py": KERAS,
        "keras.toml": KERAS_MODEL,
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def flat(done):
    return " ".join(done.output.split())


def read_json(*arguments):
    done = run(*arguments, "--json", "-")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.output)


def test_a_plan_of_a_script_needs_no_other_option(files):
    data = read_json("plan", "--config", "train.sh")
    assert data["mesh"] == {"data": 4, "stage": 2, "tensor": 4}
    assert data["choices"]["strategy"] == "tensor+pipeline+zero1"
    assert (data["choices"]["batch"], data["choices"]["microbatch"]) == (128, 4)
    assert data["choices"]["remat"] == "selective"
    assert "--num-layers: 32" in data["config"]["read"]
    assert "--lr" in data["config"]["ignored"]


def test_options_override_the_configuration(files):
    data = read_json(
        *("plan", "--config", "train.sh", "--mesh", "data=8,tensor=4", "--batch", "64"),
        *("--remat", "full", "--optimizer", "lion"),
    )
    assert data["mesh"] == {"data": 8, "tensor": 4}
    assert data["choices"]["strategy"] == "tensor+zero1"
    assert (data["choices"]["batch"], data["choices"]["microbatch"]) == (64, 8)
    assert (data["choices"]["remat"], data["choices"]["optimizer"]) == ("full", "lion")
    assert data["config"]["overridden"] == ["--mesh", "--batch", "--remat", "--optimizer"]


def test_the_report_says_what_was_read_and_what_was_not_used(files):
    done = run("plan", "--config", "run.yml", "--devices", "v5p-512", "--time")
    assert "MaxText YAML run.yml" in done.output
    assert "mesh fsdp=64,tensor=4; strategy fsdp+tensor; batch 1,024 x sequence 8,192" in flat(done)
    assert "not used: run_name, learning_rate, logical_axis_rules" in flat(done)
    assert "step: " in done.output  # --time works with a slice as the hardware


def test_a_model_of_the_command_takes_precedence(files):
    data = read_json("plan", "llama3-8b", "--config", "run.yml", "--devices", "64")
    assert (data["model"], data["config"]["overridden"]) == ("llama3-8b", ["MODEL"])


def test_a_configuration_without_a_mesh_needs_the_option(files):
    done = run("plan", "--config", "config.json")
    assert done.exit_code == 2
    assert "Missing option '--mesh'" in done.stderr
    data = read_json("plan", "--config", "config.json", "--mesh", "fsdp=4", "--strategy", "fsdp")
    assert data["n_parameters"] == 596_049_920


def test_each_layout_without_a_match_is_reported(files):
    done = run("plan", "keras.toml", "--config", "layouts.py")
    assert (
        "Layout 3, 'decoder_blok.*ffw.*kernel', matches no variable; the nearest path is "
        "'decoder_block_0/ffw_gating/kernel'." in flat(done)
    )
    data = read_json("plan", "keras.toml", "--config", "layouts.py")
    assert data["mesh"] == {"batch": 2, "model": 4}
    assert len(data["config"]["problems"]) == 1
    specs = {row["path"]: row["held"][0]["spec"] for row in data["rows"]}
    assert specs["token_embedding/embeddings"] == ["model", "batch"]


def test_stages_that_do_not_divide_the_layers_are_named(files):
    done = run("plan", "--config", "llama31_405b")
    assert "126 layers are not divisible by 8 stages: some have 16, the others 15" in flat(done)
    assert "on every stage" not in flat(done)


def test_advice_for_a_recipe_shows_its_mesh(files):
    done = run("advise", "--config", "llama3_70b", "--top", "2")
    assert done.exit_code == 0, done.output
    assert "data=2,stage=4,context=2,tensor=4" in done.output
    assert "NeMo recipe llama3_70b" in done.output


def test_advice_for_a_script_suggests_a_command_that_reads_it_again(files):
    done = run("advise", "--config", "train.sh", "--hardware", "h100", "--json", "-")
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert data["config"]["mesh"] == "data=4,stage=2,tensor=4"
    program, command, source, *rest = data["command"].split()
    assert (program, command, source) == ("shardlab", "plan", "--config=train.sh")
    assert run(command, source, *rest).exit_code == 0


def test_advice_for_a_configuration_on_other_devices(files):
    arguments = ("--config", "train.toml", "--devices", "128", "--hardware", "h100")
    done = run("advise", *arguments, "--top", "1")
    assert done.exit_code == 0, done.output
    assert "70,553,706,496 parameters on 128 h100 devices" in done.output
    assert "batch 128 x sequence 8,192" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--config", "llama3_71b"], "is neither a file nor a recipe of NeMo"),
        (["plan", "--config", "nowhere.yml"], "There is no file 'nowhere.yml'"),
        (["plan", "--config", "run.yml"], "takes the remaining devices"),
        (["plan", "--config", "layouts.py"], "Missing argument 'MODEL'"),
        (["plan", "--config", "run.yml", "--devices", "v6e-48"], "There is no TPU slice 'v6e-48'"),
        (["advise", "--config", "train.sh"], "Missing option '--hardware'"),
        (["advise", "--config", "config.json", "--hardware", "h100"], "Missing option '--devices'"),
        (["advise", "--hardware", "h100", "--devices", "8"], "Missing argument 'MODEL'"),
        (["advise", "llama3-8b", "--hardware", "h100"], "Missing option '--devices'"),
        (["advise", "llama3-8b", "--devices", "v9p-8"], "does not name a known TPU"),
    ],
)
def test_mistakes_are_reported_with_exit_code_2(files, arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output + done.stderr
    assert "Traceback" not in done.output


def test_advice_for_a_number_of_chips_that_no_slice_has_says_so(files):
    done = run("advise", "llama3-8b", "--hardware", "tpu-v6e", "--devices", "48", "--top", "1")
    assert "There is no v6e slice of 48 chips; the nearest are v6e-32 and v6e-64." in flat(done)
