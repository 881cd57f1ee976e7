"""Compiles one lowered program for many devices, in a process of its own. No device is made.

Run as a file: `python -P compile_worker.py FOLDER`, where FOLDER holds `module` (MLIR bytecode),
`options` (XLA's own, serialised) and `dump_options`. Leaves `answer.json` there, and what was asked
to be dumped. Imports jaxlib alone, since JAX itself would take longer than many a compile.

All partitions are assigned to the one device there is. XLA never asks, since nothing is run: the
partitioned program is the same, and the number of devices has no limit.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from jaxlib import xla_client


def main(folder: Path) -> None:
    threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    module = (folder / "module").read_bytes()
    client = xla_client.make_cpu_client(num_devices=1)
    if b"lapack_" in module:
        _register_lapack()
    options = xla_client.CompileOptions.ParseFromString((folder / "options").read_bytes())
    dump_options = json.loads((folder / "dump_options").read_text())
    options.env_option_overrides = [*options.env_option_overrides, *dump_options.items()]
    devices = client.devices()[:1] * options.num_partitions
    try:
        executable = client.compile_and_load(module, devices, options)
    except Exception as error:
        answer: dict[str, Any] = {"refused": str(error)}
    else:
        answer = {"memory": memory(executable)}
    (folder / "answer.json").write_text(json.dumps(answer))
    # Taking down client and executable in order costs time and gains nothing.
    sys.stdout.flush()
    os._exit(0)


def memory(executable: Any) -> dict[str, int]:
    stats = executable.get_compiled_memory_stats()
    return {
        f"{name}_bytes": getattr(stats, f"{name}_size_in_bytes")
        for name in ("argument", "output", "temp", "alias")
    }


def _end_with_parent(folder: Path) -> None:
    """End when whoever started this process is gone, which closes its end of the pipe; tidy up."""
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _register_lapack() -> None:
    from jaxlib import lapack

    for platform, targets in lapack.registrations().items():
        for name, value, version in targets:
            xla_client.register_custom_call_target(name, value, platform, version)
    for name in lapack.batch_partitionable_targets():
        xla_client.register_custom_call_as_batch_partitionable(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
