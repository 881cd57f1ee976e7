"""A submission is stored with the seed of its hidden cases."""

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.attempt import record_submission
from shardlab.course.store import open_store


def test_a_seed_is_large_and_random_unless_given(tmp_path):
    store, problem = open_store(tmp_path), load_catalogue().load_problem("shard-map-psum")

    def submit(seed=None):
        return record_submission(store, problem, b"x = 1\n", kind="submit", seed=seed).seed

    seeds = {submit() for _ in range(4)}
    assert len(seeds) == 4
    assert max(seeds) >= 1 << 48  # four that are smaller come once in 2**60
    assert submit(2**63 - 1) == 2**63 - 1
