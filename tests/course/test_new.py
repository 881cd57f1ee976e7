"""New problems: a folder that is right, a list that stays as it was, and no folder overwritten."""

from __future__ import annotations

import tomllib

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.new_problem import new_problem, with_problem
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
    made = new_problem("take-the-largest", "basics", tmp_path / "ours")
    assert made == tmp_path / "ours" / "basics" / "take-the-largest"
    problem = load_catalogue(tmp_path / "ours").problem("take-the-largest")
    assert problem.title == "Take the largest"
    assert problem.parts[0].call == "take_the_largest(x, mesh)"
    for path in made.rglob("*"):
        assert path.is_dir() or "{function}" not in path.read_text("utf-8")


@pytest.mark.parametrize("track", ["a", "b", "c"])
def test_a_problem_goes_to_the_end_of_its_track_and_nothing_else_changes(track):
    before, after = tomllib.loads(LISTS), tomllib.loads(with_problem(LISTS, "three", track))
    assert with_problem(LISTS, "three", track).count("kept") == 2
    lists = {each["folder"]: each["problems"] for each in before["tracks"]}
    lists[track] = [*lists.get(track, []), "three"]
    assert {each["folder"]: each["problems"] for each in after["tracks"]} == lists
    assert after["prerequisites"] == before["prerequisites"]


def test_a_list_that_cannot_be_added_to_is_left_alone():
    text = LISTS.replace('title = "A"  # kept too\nproblems = []', 'problems = []\ntitle = "A"')
    assert "three" in with_problem(text, "three", "a")
    turned = text.replace('folder = "a"\nproblems = []', 'problems = []\nfolder = "a"')
    with pytest.raises(InvalidTracks, match="'three' cannot be added to the list of 'a'"):
        with_problem(turned, "three", "a")


def test_a_name_that_is_taken_is_refused_and_nothing_written(tmp_path):
    new_problem("take-the-largest", "basics", tmp_path)
    before = (tmp_path / "tracks.toml").read_text()
    with pytest.raises(ProblemExists, match="There is a problem 'take-the-largest' already"):
        new_problem("take-the-largest", "more", tmp_path)
    (tmp_path / "basics" / "half-done").mkdir()
    with pytest.raises(ProblemExists, match="half-done"):
        new_problem("half-done", "basics", tmp_path)
    assert (tmp_path / "tracks.toml").read_text() == before
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("name", ["Take", "take it", "../take", "take-", "", "1-take"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name):
    with pytest.raises(InvalidProblemName, match="cannot be the name of a problem"):
        new_problem(name, "basics", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_track_that_is_a_slip_of_another_is_refused(tmp_path):
    new_problem("take-the-largest", "collectives", tmp_path)
    with pytest.raises(UnknownProblem, match="'collectives', the nearest name"):
        new_problem("take-the-smallest", "colectives", tmp_path)
