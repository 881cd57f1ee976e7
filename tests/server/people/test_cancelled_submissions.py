"""Submissions that were cancelled by the hundred do not keep others waiting."""

from __future__ import annotations

from shardlab.server.jobs.sql_queue import SqlJobQueue

PAGE = "/practice/shard-map-psum"


def test_a_submission_is_compared_with_the_newest_ones_only(server, monkeypatch):
    ada = server.person("Ada")
    for _ in range(300):
        server.submit(ada, code="")  # stored, and in no job
    keys = []
    find_by_key = SqlJobQueue.find_by_key

    def record_key(queue, key):
        keys.append(key)
        return find_by_key(queue, key)

    monkeypatch.setattr(SqlJobQueue, "find_by_key", record_key)
    source = "def shard_map_psum(x, mesh):\n    return x\n"
    for _ in range(2):
        assert ada.post(f"{PAGE}/submit", {"source": source}).status_code == 303
    assert len(keys) < 100  # all who submit wait while they are looked up
    # The second request is the same submission, which still waits.
    assert len(server.store(ada).list_submissions()) == 301
