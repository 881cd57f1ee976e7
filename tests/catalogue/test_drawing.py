"""Inputs are drawn: values differ between seeds, edge values occur, shapes do not follow a mesh."""

import math
from itertools import permutations

import numpy as np
import pytest

from shardlab.catalogue import drawing
from shardlab.catalogue.reference import Draw, load_reference
from shardlab.catalogue.tracks import load_catalogue
from shardlab.judge.cases import make_cases
from shardlab.sharding.mesh import Mesh

CATALOGUE = load_catalogue()
SLUGS = [
    slug
    for track in CATALOGUE.tracks
    if track.folder in ("a-layout", "b-placement", "c-collectives")
    for slug in track.slugs
]
TITLES = {
    "replicated-sharding": ("NamedSharding (Replicated)", None),
    "shard-map-basics": ("shard_map Basics", None),
    "partition-spec-layout": ("PartitionSpec Layout", "medium"),
    "shard-map-psum": ("shard_map with psum Collective", "hard"),
    "nnx-shard-map": ("NNX shard_map Simulation", None),
}


def make_draw(seed, scale=2, number=0, **mesh_shape):
    mesh = Mesh(mesh_shape or {"data": 4})
    return Draw(rng=np.random.default_rng(seed), mesh=mesh, scale=scale, number=number)


@pytest.mark.parametrize("scale", [1, 2])
def test_exact_numbers_add_up_in_any_order(scale):
    values = drawing.draw_exact(make_draw(0, scale), 2048)
    assert values.dtype == np.float32
    assert values.min() < 0 < values.max()
    assert 0 in values
    assert values.sum() == values[::-1].cumsum()[-1] == math.fsum(values.tolist())
    assert np.array_equal(values, values.astype(np.float16)) == (scale == 1)
    assert np.array_equal(values, values.round()) == (scale == 1)


def test_a_vector_of_two_numbers_has_a_zero():
    assert all(0 in drawing.draw_exact(make_draw(seed), 2) for seed in range(50))
    assert all(0 in drawing.draw_distinct_shards(make_draw(seed), 2) for seed in range(50))


def test_shards_of_distinct_numbers_are_never_alike():
    for seed in range(50):
        values = drawing.draw_distinct_shards(make_draw(seed), (8, 3))
        assert len(set(values.flat)) >= values.size - 1
        assert len({shard.tobytes() for shard in np.split(values, 4)}) == 4


def test_the_third_case_has_numbers_that_clipping_changes():
    for seed in range(50):
        draw = make_draw(seed, number=2)
        terms = drawing.draw_terms(draw, 6)
        assert np.max(np.abs(terms)) > 1e6
        assert terms.sum() == math.fsum(terms.tolist())
        assert np.max(np.abs(drawing.draw_distinct_shards(draw, (8, 3)))) > 1e6


def test_terms_tell_the_sum_from_its_multiples_and_from_one_shard():
    for seed in range(200):
        terms = drawing.draw_terms(make_draw(seed, 1, data=2), 1)
        assert terms.sum() != 0
        assert terms[0] != terms[1]


def test_specs_name_each_mesh_axis_at_most_once_in_any_order():
    seen = set()
    for seed in range(300):
        draw = make_draw(seed)
        spec = drawing.draw_spec(draw, 2, {"a": 2, "b": 3})
        assert len(spec) <= 2
        assert len(set(spec.mesh_axes)) == len(spec.mesh_axes)
        seen.add(spec.axes)
    assert {((), ("a", "b")), ((), ("b", "a")), (), (("a",), ("b",)), ((), ())} <= seen
    assert {(names,) for names in permutations("ab")} <= seen


def shapes_of(value):
    if isinstance(value, dict):
        return tuple((key, shapes_of(item)) for key, item in value.items())
    return value.shape if isinstance(value, np.ndarray) else repr(value)


@pytest.mark.parametrize("slug", SLUGS)
def test_shapes_and_values_do_not_follow_from_the_case(slug):
    problem = CATALOGUE.load_problem(slug)
    for part in problem.parts:
        reference = load_reference(problem, part)
        draws_by_case = zip(*(make_cases(part, seed, 2) for seed in range(12)), strict=True)
        for cases in draws_by_case:
            inputs = [reference.inputs(case.draw) for case in cases]
            assert len({shapes_of(drawn) for drawn in inputs}) > 1, cases[0].name
            if any(isinstance(value, np.ndarray) for value in inputs[0].values()):
                assert len({repr(drawn) for drawn in inputs}) > len(inputs) // 2, cases[0].name


@pytest.mark.parametrize("slug", TITLES)
def test_problems_are_found_by_the_titles_of_the_pages_they_come_from(slug):
    problem = CATALOGUE.load_problem(slug)
    title, difficulty = TITLES[slug]
    assert problem.title == title
    assert difficulty in (None, problem.difficulty)


@pytest.mark.parametrize("slug", ["shard-map-basics", "shard-map-psum"])
@pytest.mark.parametrize("seed", range(20))
def test_every_judgement_has_a_large_shard(slug, seed):
    # Without one, a submission that is wrong for shards of 8 or more elements passes.
    problem = load_catalogue().load_problem(slug)
    for part in problem.parts:
        reference = load_reference(problem, part)
        cases = [case for case in make_cases(part, seed, 2) if not case.is_simulated]
        sizes = [
            reference.inputs(case.draw)["x"].size // case.draw.mesh.axis_sizes[0] for case in cases
        ]
        assert max(sizes) > 8
