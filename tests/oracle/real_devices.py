"""A process with eight real host devices that evaluates programs for the tests.

The number of host devices must be set before JAX is first used, and the pytest process keeps just
one, so programs come here: one JSON request per line on stdin, and for each, on stdout, a line with
the number of bytes that follow and an npz file of that length. For a program that raises, the line
has the text of the error.
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
from generated import build_program
from program import N_DEVICES, Program, evaluate
from runtimes import device_runtime
from written import PROGRAMS


def find_program(request: dict[str, Any]) -> Program:
    if "written" in request:
        return PROGRAMS[request["written"]]
    return build_program(request["generated"])


def run_request(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    try:
        program = find_program(request)
        arrays = evaluate(program, device_runtime(program))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, b""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return {}, file.getvalue()


def main() -> None:
    # The output of programs must not mix with the responses.
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        head, body = run_request(json.loads(line))
        responses.write(json.dumps({**head, "bytes": len(body)}).encode() + b"\n" + body)
        responses.flush()
        if "generated" in json.loads(line):
            jax.clear_caches()


if __name__ == "__main__":
    main()
