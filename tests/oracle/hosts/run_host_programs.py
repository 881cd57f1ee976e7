"""Runs programs of `host_programs.py` as one host, and writes what each returned to a file.

python run_host_programs.py FOLDER PROGRAM...          under `shardlab run --hosts 4`
python run_host_programs.py --real PORT:INDEX FOLDER PROGRAM...    as one of four real processes
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import host_programs
import jax
import numpy as np


def plain(value):
    """Return arrays, numbers and containers as JSON."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        return {"dtype": str(array.dtype), "values": array.tolist()}
    return value


def main(arguments):
    warnings.simplefilter("ignore")
    if arguments[0] == "--real":
        port, _, index = arguments[1].partition(":")
        arguments = arguments[2:]
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", host_programs.N_LOCAL)
        jax.distributed.initialize(f"localhost:{port}", host_programs.N_HOSTS, int(index))
    else:
        jax.distributed.initialize()
    folder, *names = arguments
    host_programs.FOLDER = Path(folder)
    results = {}
    for name in names:
        try:
            results[name] = plain(host_programs.PROGRAMS[name]())
        except Exception as error:
            results[name] = f"raised {type(error).__name__}: {error}"
    file = Path(folder) / f"results-{jax.process_index()}.json"
    file.write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
