"""Sources of a model: which one is used, and the error if there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.models.checkpoints import write_tensors
from shardlab.errors import InvalidModel, UnknownModel
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import load_preset


def test_a_model_is_itself():
    model = load_preset("llama3-8b")
    assert load_model(model) is model


def test_the_name_of_a_preset_comes_before_a_folder_and_dot_slash_means_the_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3-8b").mkdir()
    write_tensors(tmp_path / "llama3-8b" / "model.safetensors", {"up": (6, 4)})
    assert load_model("llama3-8b").n_tensors == 291
    assert load_model("./llama3-8b").n_tensors == 1


def test_a_repositorys_name_is_a_folder_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "meta-llama/Meta-Llama-3-8B"
    assert load_model(name).name == "llama3-8b"
    (tmp_path / name).mkdir(parents=True)
    write_tensors(tmp_path / name / "model.safetensors", {"up": (6, 4)})
    assert load_model(name).n_tensors == 1


def test_endings_may_be_in_capitals(tmp_path):
    assert load_model(write_tensors(tmp_path / "M.SAFETENSORS", {"up": (6, 4)})).n_tensors == 1


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tensors(tmp_path / "m.safetensors", {"up": (6, 4)})
    assert load_model("~/m.safetensors").n_tensors == 1


@pytest.mark.parametrize(
    "text", ["./nothing", "/nothing", "nothing.toml", "nothing.safetensors", "nothing.json", "~/no"]
)
def test_text_that_looks_like_a_path_is_an_error_about_the_file(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidModel, match="There is no file '") as raised:
        load_model(text)
    assert raised.value.where


def test_the_nearest_file_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("", "utf-8")
    with pytest.raises(InvalidModel) as raised:
        load_model("mien.toml")
    assert "'mine.toml'" in str(raised.value)


@pytest.mark.parametrize("text", ["nothing", "", "a\0b", "x" * 5000, "é" * 300, "\ud800", "a/b"])
def test_other_text_is_an_error_about_presets(text):
    with pytest.raises(UnknownModel, match="`shardlab plan --list` shows all 34 presets"):
        load_model(text)


@pytest.mark.parametrize("name", ["model.bin", "model.gguf", "model.pt", "notes"])
def test_a_file_of_another_kind_is_rejected(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}")
    with pytest.raises(InvalidModel, match=f"{name!r} is not a file with the shapes of a model"):
        load_model(tmp_path / name)


def test_a_missing_path_is_rejected(tmp_path):
    for name in ("no", "no.toml", "no.json", "no.safetensors", "no.safetensors.index.json"):
        with pytest.raises(InvalidModel, match=f"There is no file '{name}'"):
            load_model(tmp_path / name)


def test_the_error_for_an_incomplete_config_names_the_key(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    with pytest.raises(InvalidModel, match="'num_attention_heads' is None") as raised:
        load_model(tmp_path / "config.json")
    assert raised.value.fix == "use a config.json of Hugging Face's transformers."


def test_models_are_loaded_without_jax_and_numpy(tmp_path):
    file = write_tensors(tmp_path / "m.safetensors", {"up": (6, 4)})
    code = (
        "import sys\n"
        "from shardlab.planner.models.load import load_model\n"
        f"load_model('deepseek-v3'), load_model({str(file)!r})\n"
        "print(sorted({'jax', 'numpy', 'flax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_that_may_not_be_read_is_rejected(tmp_path, monkeypatch):
    def denied(self):
        raise PermissionError(13, "Permission denied")

    # a superuser, as which tests often run, may read every folder
    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    with pytest.raises(InvalidModel, match="cannot be read: Permission denied"):
        load_model(tmp_path)
