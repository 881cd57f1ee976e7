"""An answer handed in: what its hidden cases are drawn from."""

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.attempt import record_submission
from shardlab.course.store import open_record


def test_a_seed_cannot_be_found_by_trying_and_can_be_kept(tmp_path):
    record, problem = open_record(tmp_path), load_catalogue().problem("shard-map-psum")

    def drawn(seed=None):
        return record_submission(record, problem, b"x = 1\n", kind="submit", seed=seed).seed

    seeds = {drawn() for _ in range(4)}
    assert len(seeds) == 4
    assert max(seeds) >= 1 << 48  # four that are smaller come once in 2**60
    assert drawn(2**63 - 1) == 2**63 - 1
