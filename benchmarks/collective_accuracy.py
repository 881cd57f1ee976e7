"""Section `planner`, part: collectives on H100 beside AutoParallel's model of NCCL.

AutoParallel (meta-pytorch/autoparallel) has a model of NCCL with corrections from nccl-tests. Its
figures for groups of full nodes are in `data/nccl_collectives.json`; with a clone (`--autoparallel
FOLDER`, or SHARDLAB_AUTOPARALLEL) its own code runs instead, also for groups that have a part of
each node. `python -m benchmarks.collective_accuracy FOLDER` writes the file.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.report import Goal, Section

POINTS_FILE = Path(__file__).parent / "data" / "nccl_collectives.json"
OPERATIONS = ("all_gather", "psum_scatter", "psum", "all_to_all")
GOAL_OPERATIONS = ("all_gather", "psum_scatter", "psum")
GOAL = 0.15
NODES = (1, 2, 4, 8, 16, 32)
SIZES = tuple(2**power for power in range(20, 31))  # 1 MiB to 1 GiB
_NODE = 8
_MODULE = Path("autoparallel") / "cost_models" / "nccl_cost_model.py"
_SOURCE = (
    "meta-pytorch/autoparallel a54c252 autoparallel/cost_models/nccl_cost_model.py, "
    "h100_topo_config: 8 H100 with NVSwitch per node, one 400 Gb/s adapter per GPU"
)


@dataclass(frozen=True, kw_only=True)
class CollectivePoint:
    """A collective of a group, the microseconds of the peer's model, and ours.

    `n_bytes` is the gathered array of an all-gather, the operand of the others on one device.
    """

    op: str
    n_nodes: int
    gpus_per_node: int  # of the group
    n_bytes: int
    peer: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.ours / self.peer

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def is_possible(self) -> bool:
        """Whether the peer's time is not below the data rate of the adapters of the group."""
        if self.n_nodes == 1 or self.op not in GOAL_OPERATIONS:
            return True
        times = 2 if self.op == "psum" else 1
        sent = times * self.n_bytes * (self.n_nodes - 1) / self.n_nodes
        return self.peer >= sent / (self.gpus_per_node * 50e9) * 1e6


def committed_points() -> list[CollectivePoint]:
    """Return the committed figures of the peer beside ours."""
    data = json.loads(POINTS_FILE.read_text("utf-8"))
    return [
        _point(row["op"], row["nodes"], _NODE, n_bytes, peer)
        for row in data["rows"]
        for n_bytes, peer in zip(data["bytes"], row["microseconds"], strict=True)
    ]


def peer_points(folder: Path, gpus_per_node: Iterable[int]) -> list[CollectivePoint]:
    """Run the model of a clone of AutoParallel."""
    model = _load_model(folder)
    return [
        _point(op, n_nodes, n_gpus, n_bytes, _peer_time(model, op, n_nodes, n_gpus, n_bytes))
        for n_gpus in gpus_per_node
        for op in OPERATIONS
        for n_nodes in NODES
        if n_nodes * n_gpus > 1
        for n_bytes in SIZES
    ]


def compare_with_autoparallel(folder: Path | None) -> Section:
    """Return mean and worst ratio to AutoParallel's model, by operation and nodes."""
    section = Section(
        "Collectives on H100 beside AutoParallel's NCCL model, 1 MiB to 1 GiB",
        ["operation", "GPUs per node", "nodes", "mean ratio", "worst ratio", "mean error"],
    )
    full = peer_points(folder, [_NODE]) if folder else committed_points()
    partial = peer_points(folder, [1, 2, 4]) if folder else []
    for points in (full, [point for point in partial if point.is_possible]):
        section.rows += list(_rows(points))
    section.data += [vars(point) for point in (*full, *partial)]
    goal_points = [point for point in full if point.op in GOAL_OPERATIONS]
    section.goals += [
        Goal("worst error of collectives on full nodes, NCCL model", GOAL, worst_error(goal_points))
    ]
    n_impossible = sum(not point.is_possible for point in partial)
    if n_impossible:
        section.notes.append(
            f"{n_impossible} figures of AutoParallel are left out: its all-reduce of two nodes "
            "with a part of each has the bandwidth of NVLink, more than the adapters send."
        )
    if folder is None:
        section.notes.append("The committed figures of AutoParallel; --autoparallel FOLDER runs it")
    return section


def mean_error(points: Sequence[CollectivePoint]) -> float:
    return statistics.mean(point.error for point in points)


def worst_error(points: Sequence[CollectivePoint]) -> float:
    return max(point.error for point in points)


def _rows(points: Sequence[CollectivePoint]) -> Iterator[list[str]]:
    groups: dict[tuple[str, int, int], list[CollectivePoint]] = {}
    for point in points:
        groups.setdefault((point.op, point.gpus_per_node, point.n_nodes), []).append(point)
    for (op, n_gpus, n_nodes), group in groups.items():
        worst = max(group, key=lambda point: point.error)
        mean = statistics.mean(point.ratio for point in group)
        cells = (f"{mean:.2f}", f"{worst.ratio:.2f}", f"{mean_error(group):.1%}")
        yield [op, str(n_gpus), str(n_nodes), *cells]


def _point(op: str, n_nodes: int, n_gpus: int, n_bytes: int, peer: float) -> CollectivePoint:
    ours = shardlab_time(op, n_nodes, n_gpus, n_bytes)
    return CollectivePoint(
        op=op, n_nodes=n_nodes, gpus_per_node=n_gpus, n_bytes=n_bytes, peer=peer, ours=ours
    )


def shardlab_time(op: str, n_nodes: int, n_gpus: int, n_bytes: int) -> float:
    """Return our microseconds, timed as `advise` does: a mesh axis on nodes of 8 H100."""
    from shardlab.hardware.chips import parse_hardware
    from shardlab.hardware.step_timer import StepCollective, StepTimer

    size = n_nodes * n_gpus
    collective = StepCollective(
        what="",
        axes=("group",),
        op=op,
        payload_bytes=n_bytes // size if op == "all_gather" else n_bytes,
        count=1,
    )
    mesh = (("group", size), ("other", _NODE // n_gpus))
    if n_nodes == 1:
        mesh = mesh[::-1]
    timer = StepTimer(hardware=parse_hardware("h100"))
    return timer.fastest_placement(mesh, [collective])[1][0].seconds * 1e6


def _load_model(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("nccl_cost_model", folder / _MODULE)
    if spec is None or spec.loader is None or not (folder / _MODULE).is_file():
        raise FileNotFoundError(f"{folder} is not a clone of AutoParallel: it has no {_MODULE}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def _peer_time(model: ModuleType, op: str, n_nodes: int, n_gpus: int, n_bytes: int) -> float:
    config = model.h100_topo_config(num_nodes=n_nodes, gpus_per_node=_NODE)
    shape, axis = ((n_nodes * n_gpus, _NODE // n_gpus), 0)
    if n_nodes == 1:
        shape, axis = ((_NODE // n_gpus, n_gpus), 1)
    topology = model.derive_mesh_dim_topo(config, shape, axis)
    costs: dict[str, Callable[..., Any]] = {
        "all_gather": model.nccl_allgather_cost,
        "psum_scatter": model.nccl_reduce_scatter_cost,
        "psum": model.nccl_allreduce_cost,
        "all_to_all": model.nccl_all_to_all_cost,
    }
    return float(costs[op](n_bytes, topology, config))


def write_points(folder: Path) -> None:
    """Write the figures of the peer for full nodes to the committed file."""
    rows: dict[tuple[str, int], list[float]] = {}
    for point in peer_points(folder, [_NODE]):
        rows.setdefault((point.op, point.n_nodes), []).append(round(point.peer, 2))
    lines = ",\n".join(
        "  " + json.dumps({"op": op, "nodes": n_nodes, "microseconds": times})
        for (op, n_nodes), times in rows.items()
    )
    head = f' "source": {json.dumps(_SOURCE)},\n "bytes": {json.dumps(SIZES)},\n'
    POINTS_FILE.write_text(f'{{\n{head} "rows": [\n{lines}\n ]\n}}\n', "utf-8")


if __name__ == "__main__":
    write_points(Path(sys.argv[1]))
