"""Compiles one lowered program with the real TPU compiler, in a process of its own. Needs no TPU.

Run as a file: `python -P tpu_worker.py FOLDER`. FOLDER holds `module` and `options` as for
`compile_worker.py`, and `topology` (its name, and the axes of the mesh). The worker writes
`result.json` there, and the compiled HLO to `text`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from jax._src.interpreters import mlir  # make_ir_context, with all dialects loaded
from jax._src.lib import _jax, xla_client  # DeviceList, compile options
from jax._src.lib.mlir import ir
from jax.experimental import topologies


def run_worker(folder: Path) -> None:
    threading.Thread(target=_exit_with_parent, args=[folder], daemon=True).start()
    request = json.loads((folder / "topology").read_text())
    try:
        result = _compile_program(folder, request["name"], request["axes"])
    except Exception as error:
        result = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(result))
    os._exit(0)


def _compile_program(folder: Path, name: str, axes: dict[str, int]) -> dict[str, Any]:
    try:
        topology = topologies.get_topology_desc(name, "tpu")
    except Exception as error:
        return {"unknown": str(error)}
    options = xla_client.CompileOptions.ParseFromString((folder / "options").read_bytes())
    if len(topology.devices) != options.num_partitions:
        return {"n_devices": len(topology.devices)}
    devices = _devices_in_mesh_order(topology, axes)
    # Unlike on CPU, the assignment matters: libtpu plans communication for the real torus.
    ids = np.array([device.id for device in devices]).reshape(1, -1)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    with mlir.make_ir_context():
        module = ir.Module.parse((folder / "module").read_bytes())
        client = devices[0].client
        executable = client.compile(module, _jax.DeviceList(tuple(devices)), options)
    (folder / "text").write_text(executable.hlo_modules()[0].to_string())
    stats = executable.get_compiled_memory_stats()
    sizes = ("argument", "output", "temp", "alias")
    return {"memory": {f"{s}_bytes": getattr(stats, f"{s}_size_in_bytes") for s in sizes}}


def _devices_in_mesh_order(topology: Any, axes: dict[str, int]) -> list[Any]:
    """Return the chips in mesh order, with neighbours on a mesh axis close on the torus."""
    try:
        mesh = topologies.make_mesh(topology, tuple(axes.values()), tuple(axes))
    except (ValueError, NotImplementedError):  # this mesh does not fit the torus: use id order
        return list(topology.devices)
    return list(mesh.devices.flat)


def _exit_with_parent(folder: Path) -> None:
    """Remove the folder and exit when the parent process ends, which closes its end of stdin."""
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    run_worker(Path(sys.argv[1]))
