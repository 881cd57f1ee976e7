"""What a worker says before it goes is heard, however late it is read."""

from __future__ import annotations

import json
import queue
import threading

from shardlab.execution import worker_client as child


class Gone:
    """A process that has ended well."""

    returncode = 0

    def poll(self):
        return 0

    def wait(self, timeout):
        return 0


def test_an_answer_that_is_read_after_the_worker_has_gone_is_an_answer():
    lines = queue.SimpleQueue()
    answer = {"result": {"report": {}}}
    late = threading.Timer(0.5, lines.put, [json.dumps(answer).encode()])
    late.start()
    assert child._answer(Gone(), lines, 10, lambda text: None, "shardlab check a.py") == answer
    late.join()
