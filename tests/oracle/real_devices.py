"""A process with eight real host devices that evaluates programs for the tests.

The number of host devices must be set before JAX is first used, and the pytest process keeps just
one, so programs come here: one JSON request a line on stdin, and for each, on stdout, a line with
the number of bytes that follow and an npz file of that length. A program that raises is answered
with the error in words.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from typing import Any

import jax
import numpy as np
from generated import describe
from program import N_DEVICES, Program, evaluate
from worlds import devices_world
from written import PROGRAMS


def find(request: dict[str, Any]) -> Program:
    if "written" in request:
        return PROGRAMS[request["written"]]
    return describe(request["generated"])


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    try:
        program = find(request)
        arrays = evaluate(program, devices_world(program))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, b""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return {}, file.getvalue()


def main() -> None:
    # What programs print must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        head, body = answer(json.loads(line))
        answers.write(json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body)
        answers.flush()
        if "generated" in json.loads(line):
            jax.clear_caches()


if __name__ == "__main__":
    main()
