"""A process that computes plans: a line of JSON in, a line of JSON out, until its input ends.

Its first line says that it is ready.

    python -m shardlab.server.planning.plan_process
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from shardlab.errors import LabError
from shardlab.execution.messages import Failure
from shardlab.server.api.plan_models import AdviceBody, PlanBody
from shardlab.server.plan_requests import check_advice_body, make_plan, view_plan

_ALARM_SECONDS = 60  # the client ends the process long before; this is for a client that is gone
_MAX_MEMORY_BYTES = 4 * 2**30


def _make_plan_view(payload: dict[str, Any]) -> dict[str, Any]:
    return view_plan(make_plan(PlanBody.model_validate(payload))).model_dump()


def compute_page(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a plan with its pictures."""
    result = make_plan(PlanBody.model_validate(payload))
    return {
        "plan": view_plan(result).model_dump(),
        "bars": result.svg(),
        "treemap": result.treemap(),
    }


def _check_advice(payload: dict[str, Any]) -> dict[str, Any]:
    check_advice_body(AdviceBody.model_validate(payload))
    return {}


_KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "plan": _make_plan_view,
    "plan_page": compute_page,
    "check_advice": _check_advice,
}


def _answer(line: bytes) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return {"result": _KINDS[request["kind"]](request["payload"])}
    except LabError as error:
        return {"failure": Failure.of_error(error).to_json()}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a lower limit is set
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))


def main() -> None:
    """Answer requests until the web process closes the pipe, or ends."""
    # Ctrl-C in a terminal reaches every process of the group. The web process decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    # A print of ours or of a library must not become an answer.
    answers_fd = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answers_fd, "wb") as answers:
        answers.write(b"ready\n")
        answers.flush()
        for line in sys.stdin.buffer:
            if hasattr(signal, "alarm"):
                signal.alarm(_ALARM_SECONDS)
            answers.write(json.dumps(_answer(line)).encode() + b"\n")
            answers.flush()
            if hasattr(signal, "alarm"):
                signal.alarm(0)


if __name__ == "__main__":
    main()
