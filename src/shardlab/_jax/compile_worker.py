"""Compiles one lowered program for many devices, in a process of its own and without devices.

Run as a file: `python -P compile_worker.py FOLDER`. FOLDER holds `module` (MLIR bytecode),
`options` (XLA's compile options, serialised) and `dump_options`. The worker writes `result.json`
there, and the dumps that the options request. With a fourth file, `analyze`, it also writes the
text of the compiled program and XLA's cost analysis. It imports only jaxlib: importing JAX would
take longer than many a compilation.

All partitions are assigned to the one CPU device. XLA does not notice, because nothing is run: the
partitioned program is the same, and the number of devices is not limited.
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


def run_worker(folder: Path) -> None:
    threading.Thread(target=exit_with_parent, args=[folder], daemon=True).start()
    module = (folder / "module").read_bytes()
    client = xla_client.make_cpu_client(num_devices=1)
    # Custom calls to LAPACK need their targets registered, which JAX does on import.
    if b"lapack_" in module:
        _register_lapack()
    options = xla_client.CompileOptions.ParseFromString((folder / "options").read_bytes())
    dump_options = json.loads((folder / "dump_options").read_text())
    options.env_option_overrides = [*options.env_option_overrides, *dump_options.items()]
    devices = client.devices()[:1] * options.num_partitions
    try:
        executable = client.compile_and_load(module, devices, options)
    except Exception as error:
        result: dict[str, Any] = {"error": str(error)}
    else:
        result = {"memory": memory_statistics(executable)}
        if (folder / "analyze").exists():
            result["analysis"] = _analyze(executable)
    (folder / "result.json").write_text(json.dumps(result))
    # An orderly shutdown of client and executable takes time and gains nothing.
    sys.stdout.flush()
    os._exit(0)


def memory_statistics(executable: Any) -> dict[str, int]:
    stats = executable.get_compiled_memory_stats()
    return {
        f"{name}_bytes": getattr(stats, f"{name}_size_in_bytes")
        for name in ("argument", "output", "temp", "alias")
    }


def _analyze(executable: Any) -> dict[str, Any]:
    """Return what `jax.stages.Compiled` reports about a compiled program."""
    stats = executable.get_compiled_memory_stats()
    names = [name for name in dir(stats) if not name.startswith("_")]
    values = {name: getattr(stats, name) for name in names}
    return {
        "text": "\n\n".join(module.to_string() for module in executable.hlo_modules()),
        "cost": executable.cost_analysis(),
        "memory": {name: value for name, value in values.items() if isinstance(value, int)},
        "memory_text": str(stats),
    }


def exit_with_parent(folder: Path) -> None:
    """Remove the folder and exit when the parent process ends, which closes its end of stdin."""
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
    run_worker(Path(sys.argv[1]))
