"""New problems: a valid folder, an edited list of tracks, and no folder overwritten."""

from __future__ import annotations

import tomllib

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.new_problem import add_to_tracks, new_problem
from shardlab.errors import InvalidProblemName, InvalidTracks, ProblemExists, UnknownProblem

LISTS = """# kept
[[tracks]]
folder = "a"
title = "A"  # kept too
problems = []

[[tracks]]
folder = "b"
title = "B"
problems = [
    "one",
    "two",
]

[prerequisites]
two = ["one"]
"""


def test_a_new_catalogue_begins_with_its_first_problem(tmp_path):
    folder = new_problem("take-the-largest", "basics", tmp_path / "ours")
    assert folder == tmp_path / "ours" / "basics" / "take-the-largest"
    problem = load_catalogue(tmp_path / "ours").load_problem("take-the-largest")
    assert problem.title == "Take the largest"
    assert problem.parts[0].call == "take_the_largest(x, mesh)"
    for path in folder.rglob("*"):
        assert path.is_dir() or "{function}" not in path.read_text("utf-8")


@pytest.mark.parametrize("track", ["a", "b", "c"])
def test_a_problem_goes_to_the_end_of_its_track_and_nothing_else_changes(track):
    before, after = tomllib.loads(LISTS), tomllib.loads(add_to_tracks(LISTS, "three", track))
    assert add_to_tracks(LISTS, "three", track).count("kept") == 2
    lists = {entry["folder"]: entry["problems"] for entry in before["tracks"]}
    lists[track] = [*lists.get(track, []), "three"]
    assert {entry["folder"]: entry["problems"] for entry in after["tracks"]} == lists
    assert after["prerequisites"] == before["prerequisites"]


def test_a_list_that_cannot_be_added_to_is_left_alone():
    text = LISTS.replace('title = "A"  # kept too\nproblems = []', 'problems = []\ntitle = "A"')
    assert "three" in add_to_tracks(text, "three", "a")
    turned = text.replace('folder = "a"\nproblems = []', 'problems = []\nfolder = "a"')
    with pytest.raises(InvalidTracks, match="'three' cannot be added to the list of 'a'"):
        add_to_tracks(turned, "three", "a")


def test_a_name_that_is_taken_is_rejected_and_nothing_written(tmp_path):
    new_problem("take-the-largest", "basics", tmp_path)
    before = (tmp_path / "tracks.toml").read_text()
    with pytest.raises(ProblemExists, match="The problem 'take-the-largest' exists already"):
        new_problem("take-the-largest", "more", tmp_path)
    (tmp_path / "basics" / "half-done").mkdir()
    with pytest.raises(ProblemExists, match="half-done"):
        new_problem("half-done", "basics", tmp_path)
    assert (tmp_path / "tracks.toml").read_text() == before
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("name", ["Take", "take it", "../take", "take-", "", "1-take"])
def test_a_name_that_cannot_be_one_is_rejected(tmp_path, name):
    with pytest.raises(InvalidProblemName, match="not a valid name of a problem"):
        new_problem(name, "basics", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_track_that_is_a_slip_of_another_is_rejected(tmp_path):
    new_problem("take-the-largest", "collectives", tmp_path)
    with pytest.raises(UnknownProblem, match="Did you mean 'collectives'"):
        new_problem("take-the-smallest", "colectives", tmp_path)
