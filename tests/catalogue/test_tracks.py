"""Catalogues: order, prerequisites, and a clear error for every invalid file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.catalogue.problem import load_problem
from shardlab.catalogue.reference import load_reference
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE, load_catalogue
from shardlab.errors import (
    CatalogueNotFound,
    InvalidProblem,
    InvalidReference,
    InvalidTracks,
    UnknownProblem,
)

MODEL = BUILT_IN_CATALOGUE / "c-collectives" / "shard-map-psum"

THREE = """
[[tracks]]
folder = "a"
title = "First"
problems = ["one", "two"]

[[tracks]]
folder = "b"
title = "Second"
problems = ["three"]

[prerequisites]
two = ["three"]
"""


@pytest.fixture
def three(tmp_path):
    """A catalogue of three problems; the second requires the third."""
    for slug in ("a/one", "a/two", "b/three"):
        shutil.copytree(MODEL, tmp_path / slug)
    (tmp_path / "tracks.toml").write_text(THREE)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_problems_come_in_the_order_of_the_tracks(three):
    catalogue = load_catalogue(three)
    assert list(catalogue.problems) == ["one", "two", "three"]
    assert [track.title for track in catalogue.tracks] == ["First", "Second"]
    assert catalogue.track_of("three").folder == "b"
    assert catalogue.problems["two"].track == "a"


def test_the_next_problem_is_the_first_open_one(three):
    catalogue = load_catalogue(three)
    assert catalogue.missing_prerequisites("two", ["one"]) == ("three",)
    order, solved = [], set()
    while slug := catalogue.next_slug(solved):
        order.append(slug)
        solved.add(slug)
    assert order == ["one", "three", "two"]


def test_the_built_in_catalogue_is_listed_without_jax_and_numpy():
    code = (
        "import sys; from shardlab.catalogue.tracks import load_catalogue\n"
        "assert load_catalogue().problems\n"
        "assert not {'jax', 'numpy', 'rich', 'click'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_slug_suggests_the_nearest(three):
    with pytest.raises(
        UnknownProblem, match=r"Unknown problem 'tree'.*\n.*\n.*Did you mean 'three'"
    ):
        load_catalogue(three).load_problem("tree")
    with pytest.raises(UnknownProblem, match=r"list --catalogue \S+` lists them"):
        load_catalogue(three).load_problem("zzzzzzzz")
    with pytest.raises(UnknownProblem, match=r"`shardlab practice list` lists them"):
        load_catalogue().load_problem("zzzzzzzz")


def test_part_of_a_slug_is_enough_if_only_one_problem_has_it(three):
    catalogue = load_catalogue(three)
    assert catalogue.find_slug("hre") == "three"
    assert catalogue.find_slug("one") == "one"
    with pytest.raises(
        UnknownProblem, match=r"2 problems have 'o' in their name.*\n.*\n.*one, two"
    ):
        catalogue.find_slug("o")
    for text in ("", "zzzz"):
        with pytest.raises(UnknownProblem, match="Unknown problem"):
            catalogue.find_slug(text)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("shard_map with psum Collective", "shard-map-psum"),
        ("shard_map with psum", "shard-map-psum"),
        ("NamedSharding (Replicated)", "replicated-sharding"),
        ("NNX shard_map Simulation", "nnx-shard-map"),
        ("PartitionSpec layout", "partition-spec-layout"),
        ("shard_map_double", "shard-map-basics"),
        ("replicated_sharding_value", "replicated-sharding"),
        ("Will it fit?", "will-it-fit"),
    ],
)
def test_a_title_or_a_function_finds_its_problem(text, slug):
    assert load_catalogue().find_slug(text) == slug


def test_a_folder_without_tracks_is_no_catalogue(tmp_path):
    with pytest.raises(CatalogueNotFound, match=r"it has no tracks\.toml"):
        load_catalogue(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "First"', "", "'title' is missing"),
        ('title = "First"', 'titel = "First"', "Unknown key 'titel'.*Did you mean 'title'"),
        ('title = "First"', "title = 3", "'title' is 3.*text"),
        ('"one"', '"onee"', "'onee' is listed.*Did you mean 'one'"),
        ('"three"]\n\n', '"three", "three"]\n\n', "'three' is listed twice"),
        ('two = ["three"]', 'two = ["thre"]', "Unknown problem 'thre'.*Did you mean 'three'"),
        ('two = ["three"]', 'two = "three"', "'two' is 'three'.*a list of slugs"),
        (
            'two = ["three"]',
            'two = ["three"]\nthree = ["two"]',
            "require each other: two, three",
        ),
        ("[prerequisites]", "[prerequisites", "is not valid TOML"),
    ],
)
def test_an_invalid_list_of_tracks_is_reported_with_its_location(three, old, new, message):
    edit(three / "tracks.toml", old, new)
    with pytest.raises(InvalidTracks, match=f"(?s){message}") as caught:
        load_catalogue(three)
    assert "tracks.toml" in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format_version = 1", "format_version = 2", "'format_version' is 2.*try: +1"),
        ("content_version = 2", "content_version = 0", "a whole number from 1"),
        ("content_version = 2", "content_version = true", "a whole number from 1"),
        ('difficulty = "hard"', 'difficulty = "tricky"', "easy, medium or hard"),
        ('difficulty = "hard"', "", "'difficulty' is missing"),
        ('tags = ["primitives"', 'tags = [1, "primitives"', "a list of strings"),
        ("requires = [", "require = [", "Unknown key 'require'.*Did you mean 'requires'"),
        ('"in_body", "psum"]', '"in_body", "psun"]', "a list of shard_map, .*psum"),
        ("psum = 1", "psun = 1", "Unknown key 'psun'.*Did you mean 'psum'"),
        ("psum = 1", "psum = -1", "'psum' is -1"),
        ("shard_map_psum(x, mesh)", "shard_map_psum(x mesh)", "a call such as"),
        ('mesh)"\naxes = ["data"]', 'mesh)"', "gets a mesh, and 'axes' is missing"),
        ('(x)"\naxes = ["data"]', '(x)"', "'mesh_axes' needs 'axes'"),
        ('axes = ["data"]', 'axes = ["data"]\ncases = 4', "'cases' has no meaning"),
        ('axes = ["data"]', 'axes = ["data"]\nmeshes = ["data=0"]', "a list of meshes"),
        ('"one_shard_map", "mesh_axes"', '"one_shard_map"', "'axes' has no meaning"),
        ('call = "shard_map_psum(x)"', 'call = "f(x)"\nkind = "plain"', "program or value"),
        ('(x)"\naxes = ["data"]', '(x)"\nkind = "value"', "'requires' has no"),
        ("[[parts]]", "[limits]\nwall = 3\n[[parts]]", "Unknown key 'wall'.*'wall_seconds'"),
    ],
)
def test_an_invalid_problem_is_reported_with_its_location(tmp_path, old, new, message):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    edit(folder / "problem.toml", old, new)
    with pytest.raises(InvalidProblem, match=f"(?s){message}") as caught:
        load_problem(folder)
    assert "problem.toml" in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("name", ["problem.toml", "statement.md", "reference.py", "starter.py"])
def test_a_missing_file_is_reported(tmp_path, name):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / name).unlink()
    with pytest.raises(InvalidProblem, match=name):
        load_problem(folder)


def test_a_reference_without_a_function_is_reported(tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    edit(folder / "reference.py", "inputs_2, expected_2 = inputs, expected", "inputs_2 = inputs")
    problem = load_problem(folder)
    assert load_reference(problem, problem.parts[0]).properties is None
    with pytest.raises(InvalidReference, match="no function expected_2 for part 2"):
        load_reference(problem, problem.parts[1])


def test_a_reference_that_cannot_be_loaded_is_reported(tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / "reference.py").write_text("import nmpy\n")
    problem = load_problem(folder)
    with pytest.raises(InvalidReference, match="No module named 'nmpy'"):
        load_reference(problem, problem.parts[0])
    assert not (folder / "__pycache__").exists()


def test_the_built_in_course_can_be_followed_in_its_order():
    catalogue = load_catalogue()
    solved: list[str] = []
    while slug := catalogue.next_slug(solved):
        solved.append(slug)
    assert solved == list(catalogue.slugs)


def test_the_built_in_course_leads_from_layouts_over_placement_to_collectives():
    catalogue = load_catalogue()

    def all_prerequisites(slug):
        direct = set(catalogue.prerequisites.get(slug, ()))
        return direct.union(*map(all_prerequisites, direct))

    tracks = {slug: catalogue.track_of(slug).folder[0] for slug in catalogue.slugs}
    needs = {"b": {"a"}, "c": {"a", "b"}, "d": {"c"}, "e": {"c"}, "f": {"c"}, "h": {"a", "b"}}
    for slug, track in tracks.items():
        assert needs.get(track, set()) <= {
            tracks[required] for required in all_prerequisites(slug)
        }, slug
    assert "data-parallel-step" in all_prerequisites("nnx-shard-map")
    assert "ring-attention" in catalogue.slugs


@pytest.mark.parametrize("folder", ["../outside0", "/etc", "link"])
def test_a_track_cannot_lead_out_of_the_catalogue(three, tmp_path_factory, folder):
    outside = tmp_path_factory.mktemp("outside")
    shutil.copytree(three / "a", outside, dirs_exist_ok=True)
    (three / "link").symlink_to(outside)
    tracks = three / "tracks.toml"
    tracks.write_text(tracks.read_text().replace('folder = "a"', f'folder = "{folder}"'))
    with pytest.raises(InvalidTracks, match="outside of the catalogue's folder"):
        load_catalogue(three)


@pytest.mark.parametrize(
    "name", ["problem.toml", "solution.py", "statement.md", "reference.py", "wrong/mine.py"]
)
def test_a_file_of_a_problem_cannot_be_a_link_to_somewhere_else(tmp_path, name):
    folder = tmp_path / "shard-map-psum"
    shutil.copytree(MODEL, folder)
    (tmp_path / "secret").write_text("private")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidProblem, match="a link that leads out of the problem's folder"):
        assert load_problem(folder).wrong_submissions


def test_the_tracks_cannot_be_a_link_to_somewhere_else(three, tmp_path_factory):
    secret = tmp_path_factory.mktemp("outside") / "credentials.toml"
    secret.write_text("token = 'private'\n")
    (three / "tracks.toml").unlink()
    (three / "tracks.toml").symlink_to(secret)
    with pytest.raises(InvalidTracks, match="leads out of the catalogue's folder") as caught:
        load_catalogue(three)
    assert "private" not in str(caught.value)


def test_deeply_nested_toml_is_reported(three):
    (three / "tracks.toml").write_text("tracks = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(InvalidTracks, match=r"is not valid TOML|is not a table"):
        load_catalogue(three)
    (three / "tracks.toml").write_text("tracks = " + "[" * 100 + "]" * 100)
    with pytest.raises(InvalidTracks, match="is not a table"):
        load_catalogue(three)
