"""Weights on disk: a file, an index or a folder gives the model, or names what is missing."""

from __future__ import annotations

import json

import pytest

from planner.models.checkpoints import write_header, write_index, write_model, write_tensors
from shardlab.errors import InvalidModel
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import load_preset

UP = {f"layers.{n}.up": (6, 4) for n in range(3)}
DOWN = {f"layers.{n}.down": (4, 6) for n in range(3)}


def refused(path):
    with pytest.raises(InvalidModel) as raised:
        load_model(path)
    assert raised.value.where
    assert raised.value.fix
    return raised.value


def test_a_file_is_a_model(tmp_path):
    model = load_model(write_tensors(tmp_path / "tiny.safetensors", {**UP, "norm": (4,)}))
    assert (model.name, model.n_tensors, model.n_parameters) == ("tiny", 4, 76)
    assert model.source == f"the header of {tmp_path / 'tiny.safetensors'}"
    assert [group.name for group in model.groups] == ["layers.*.up", "norm"]


def test_a_file_may_be_named_by_text(tmp_path):
    file = write_tensors(tmp_path / "tiny.safetensors", UP)
    assert load_model(str(file)) == load_model(file)


def test_a_file_without_tensors_is_rejected(tmp_path):
    file = write_header(tmp_path / "model.safetensors", {"__metadata__": {"format": "pt"}})
    for options in (file, tmp_path):
        error = refused(options)
        assert (error.what, error.where[:8]) == ("There are no tensors to plan.", "the head")


def test_one_part_of_many_says_so(tmp_path):
    model = load_model(write_tensors(tmp_path / "model-00002-of-00030.safetensors", UP))
    assert model.notes == ("This is file 2 of 30; give the folder to plan all of them.",)


def test_a_folder_without_an_index_is_all_its_files(tmp_path):
    write_tensors(tmp_path / "a.safetensors", UP)
    write_tensors(tmp_path / "b.safetensors", DOWN)
    (tmp_path / "readme.txt").write_text("not weights", "utf-8")
    model = load_model(tmp_path)
    assert (model.name, model.n_tensors) == (tmp_path.name, 6)
    assert model.source == f"the headers of 2 safetensors files in {tmp_path}"


def test_a_folder_with_an_index_is_what_the_index_names(tmp_path):
    write_index(tmp_path, {"a.safetensors": UP, "b.safetensors": DOWN})
    write_tensors(tmp_path / "consolidated.safetensors", {"the.same.again": (9, 9)})
    model = load_model(tmp_path)
    assert model.n_tensors == 6
    assert load_model(tmp_path / "model.safetensors.index.json").groups == model.groups


def test_another_name_of_an_index_will_do_if_it_is_the_only_one(tmp_path):
    index = write_index(tmp_path, {"a.safetensors": UP})
    second = index.rename(tmp_path / "diffusion.safetensors.index.json")
    assert load_model(tmp_path).n_tensors == 3
    (tmp_path / "third.safetensors.index.json").write_bytes(second.read_bytes())
    assert "The folder has 2 indexes" in refused(tmp_path).what


def test_a_tensor_in_two_files_is_rejected(tmp_path):
    write_tensors(tmp_path / "a.safetensors", UP)
    write_tensors(tmp_path / "b.safetensors", UP)
    assert (
        refused(tmp_path).what
        == "Tensor 'layers.0.up' is in 'a.safetensors' and in 'b.safetensors'."
    )


def test_numbered_files_of_which_some_are_missing_are_rejected(tmp_path):
    for number in (1, 2, 4):
        write_tensors(tmp_path / f"model-{number:05}-of-00004.safetensors", {f"w{number}": (3,)})
    error = refused(tmp_path)
    assert error.what == "Only 3 of 4 files model-…-of-00004 are here; number 3 is missing."


def test_a_folder_without_weights_is_rejected(tmp_path):
    assert "has no safetensors files" in refused(tmp_path).what


def test_files_that_an_index_names_and_that_are_missing_are_counted(tmp_path):
    files = {f"{name}.safetensors": {name: (3,)} for name in "abcde"}
    index = write_index(tmp_path, files)
    for name in "abde":
        (tmp_path / f"{name}.safetensors").unlink()
    error = refused(index)
    assert error.what == (
        "4 of 5 files are missing: a.safetensors, b.safetensors, d.safetensors, …."
    )


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path):
    index = write_index(tmp_path, {"a.safetensors": UP})
    index.write_text(index.read_text("utf-8").replace("a.safe", "a" * 5000 + ".safe"), "utf-8")
    assert refused(index).what.startswith("1 of 1 files are missing: aaaa")


@pytest.mark.parametrize(
    "name",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "x/../../a.safetensors",
        "..\\a.safetensors",
        "C:\\a.safetensors",
        "\\\\host\\a.safetensors",
        "a\0.safetensors",
        "/etc/passwd",
        "",
        "a.bin",
    ],
)
def test_an_index_cannot_name_what_is_outside_of_its_folder(tmp_path, name):
    folder = tmp_path / "inner"
    folder.mkdir()
    write_tensors(tmp_path / "a.safetensors", UP)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"layers.0.up": name}}), "utf-8")
    error = refused(folder)
    assert error.what == f"The index names {name!r}, which is not a safetensors file in its folder."
    assert error.where == f"{index}, byte 31"


def test_a_tensor_that_its_file_does_not_contain_is_rejected(tmp_path):
    index = write_index(tmp_path, {"a.safetensors": UP, "b.safetensors": DOWN})
    data = json.loads(index.read_text("utf-8"))
    data["weight_map"]["layers.1.up"] = "b.safetensors"
    index.write_text(json.dumps(data), "utf-8")
    assert refused(index).what == (
        "Tensor 'layers.1.up' is not in 'b.safetensors', where the index lists it. "
        "Another file has it."
    )
    data["weight_map"]["layers.1.up"] = "a.safetensors"
    data["weight_map"]["layers.9.up"] = "a.safetensors"
    index.write_text(json.dumps(data), "utf-8")
    assert refused(index).what == (
        "Tensor 'layers.9.up' is not in 'a.safetensors', where the index lists it."
    )


def test_a_tensor_that_the_index_leaves_out_is_not_counted_and_noted(tmp_path):
    index = write_index(tmp_path, {"a.safetensors": UP})
    data = json.loads(index.read_text("utf-8"))
    del data["weight_map"]["layers.1.up"]
    index.write_text(json.dumps(data), "utf-8")
    model = load_model(index)
    assert model.n_tensors == 2
    assert model.notes[0] == (
        "1 tensors of the files are not in the index and not counted: 'layers.1.up'."
    )


@pytest.mark.parametrize("total", [144, 144.0])
def test_a_total_that_agrees_is_not_spoken_of(tmp_path, total):
    write_index(tmp_path, {"a.safetensors": UP}, total)
    assert not any("index declares" in note for note in load_model(tmp_path).notes)


def test_a_total_that_disagrees_is_noted(tmp_path):
    write_index(tmp_path, {"a.safetensors": UP}, 1_000_000)
    assert load_model(tmp_path).notes[0] == (
        "The index declares a total of 1,000,000 bytes; the tensors have 144."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "An object `{...}` was expected here. The text ends here."),
        ("[]", "An object `{...}` was expected here"),
        ("{}", "The index lists no tensors"),
        ('{"weight_map": {}}', "The index lists no tensors"),
        ('{"weight_map": []}', "An object `{...}` was expected here"),
        ('{"weight_map": {"a": 1}}', 'A string "..." was expected here'),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' appears twice"),
        ('{"metadata": ' + "[" * 100_000, "longer than 4,096 characters"),
        ('{"weight_map": {"a": "x.safetensors"}} more', "There is text after the end"),
    ],
)
def test_a_broken_index_is_rejected_with_its_place(tmp_path, text, message):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text, "utf-8")
    error = refused(tmp_path)
    assert message in error.what
    assert str(index) in error.where


def test_a_broken_file_of_an_index_is_named(tmp_path):
    write_index(tmp_path, {"a.safetensors": UP, "b.safetensors": DOWN})
    write_header(tmp_path / "b.safetensors", b"{} x")
    assert str(tmp_path / "b.safetensors") in refused(tmp_path).where


def test_a_snapshot_of_the_hub_has_the_hubs_name(tmp_path):
    folder = tmp_path / "models--meta-llama--Meta-Llama-3-70B" / "snapshots" / "0a1b2c"
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", UP)
    assert load_model(folder).name == "meta-llama/Meta-Llama-3-70B"
    assert load_model(folder / "model.safetensors").name == "meta-llama/Meta-Llama-3-70B"


@pytest.mark.parametrize(("name", "n_files"), [("llama3-70b", 30), ("qwen3-30b-a3b", 16)])
def test_the_checkpoint_of_a_preset_is_the_preset(tmp_path, name, n_files):
    preset = load_preset(name)
    write_model(tmp_path, preset, n_files)
    model = load_model(tmp_path)
    assert (model.n_tensors, model.n_bytes) == (preset.n_tensors, preset.n_bytes)
    expected = {group.name: (group.shape, group.dtype, group.ranges) for group in preset.groups}
    assert {
        group.name: (group.shape, group.dtype, group.ranges) for group in model.groups
    } == expected
