"""The messages between `prove` and the process that runs a program on host devices. No JAX."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

VERSION = 1
REQUEST_FILE = "request.json"
RESULT_FILE = "result.json"  # the name that `run_compiler` reads
SHARDED_FILE = "sharded.export"
ONE_DEVICE_FILE = "one_device.export"


@dataclass(frozen=True, kw_only=True)
class DeviceRunRequest:
    """A program as two exported modules in the same folder, and how its outputs are compared."""

    version: int = VERSION
    mesh: tuple[tuple[str, int], ...]
    enable_x64: bool
    eps: tuple[float, ...]  # of each output: the machine epsilon of its least precise float type
    argument_files: tuple[str, ...]  # raw bytes of the user's own arrays; "" where they are drawn

    def write(self, folder: Path) -> None:
        (folder / REQUEST_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> DeviceRunRequest:
        data = json.loads((folder / REQUEST_FILE).read_text())
        return cls(
            version=data["version"],
            mesh=tuple((name, size) for name, size in data["mesh"]),
            enable_x64=data["enable_x64"],
            eps=tuple(data["eps"]),
            argument_files=tuple(data["argument_files"]),
        )


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """One output on the mesh, shard by shard, against the same program on one device."""

    agrees: bool
    error: float  # the largest over all devices
    tolerance: float
    n_elements: int
    n_not_finite: int
    device: int = 0  # with the largest error


@dataclass(frozen=True, kw_only=True)
class DeviceRunResult:
    """All outputs; or the message with which JAX or the program failed, and on what."""

    version: int = VERSION
    inputs: str = ""
    outputs: tuple[OutputComparison, ...] = ()
    failed_on: str = ""  # "one device" or "the mesh"
    failure: str = ""

    def write(self, folder: Path) -> None:
        (folder / RESULT_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def parse(cls, data: dict[str, object]) -> DeviceRunResult:
        outputs = data["outputs"]
        assert isinstance(outputs, list)
        return cls(
            inputs=str(data["inputs"]),
            outputs=tuple(OutputComparison(**output) for output in outputs),
            failed_on=str(data["failed_on"]),
            failure=str(data["failure"]),
        )
