"""Compiles one lowered program with the real TPU compiler, in a process of its own. Needs no TPU.

Run as a file: `python -P tpu_worker.py FOLDER`, where FOLDER holds `module` and `options` as for
`compile_worker.py`, and `topology` (its name, and the axes of the mesh). Leaves `answer.json` there
and the compiled text in `text`.
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
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies


def main(folder: Path) -> None:
    threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    asked = json.loads((folder / "topology").read_text())
    try:
        answer = _compile(folder, asked["name"], asked["axes"])
    except Exception as error:
        answer = {"refused": str(error)}
    (folder / "answer.json").write_text(json.dumps(answer))
    os._exit(0)


def _compile(folder: Path, name: str, axes: dict[str, int]) -> dict[str, Any]:
    try:
        topology = topologies.get_topology_desc(name, "tpu")
    except Exception as error:
        return {"unknown": str(error)}
    options = xla_client.CompileOptions.ParseFromString((folder / "options").read_bytes())
    if len(topology.devices) != options.num_partitions:
        return {"n_devices": len(topology.devices)}
    devices = _arranged(topology, axes)
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


def _arranged(topology: Any, axes: dict[str, int]) -> list[Any]:
    """Return the chips in the order of the mesh, neighbours on a mesh axis near each other."""
    try:
        mesh = topologies.make_mesh(topology, tuple(axes.values()), tuple(axes))
    except (ValueError, NotImplementedError):  # no such arrangement: as they are numbered
        return list(topology.devices)
    return list(mesh.devices.flat)


def _end_with_parent(folder: Path) -> None:
    """End when whoever started this process is gone, which closes its end of the pipe; tidy up."""
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
