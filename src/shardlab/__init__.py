"""Design, run and check JAX sharding for meshes you do not have.

>>> import shardlab
>>> shardlab.layout((8, 6), "data,model", "data=2,model=3").shard_shape
(4, 2)

Names load when first used: `import shardlab` brings in neither JAX nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.analysis.trace_and_check import check as check
    from shardlab.analysis.trace_and_check import trace as trace
    from shardlab.autoshard.answer import Autosharding as Autosharding
    from shardlab.autoshard.find_shardings import autoshard as autoshard
    from shardlab.errors import LabError as LabError
    from shardlab.planner.advice.make_advice import advise as advise
    from shardlab.planner.make_plan import plan as plan
    from shardlab.planner.memory.workload import Workload as Workload
    from shardlab.planner.snapshots.saved_plan import load_plan as load_plan
    from shardlab.planner.weight_transfer import transfer_weights as transfer_weights
    from shardlab.recording.record_program import record as record
    from shardlab.recording.recording import Recording as Recording
    from shardlab.recording.recording import load_recording as load_recording
    from shardlab.sharding.layout import Layout as Layout
    from shardlab.sharding.layout import layout as layout
    from shardlab.sharding.mesh import Mesh as Mesh
    from shardlab.sharding.mesh import parse_mesh as parse_mesh
    from shardlab.sharding.reshard import reshard as reshard
    from shardlab.sharding.spec import Spec as Spec
    from shardlab.sharding.spec import parse_spec as parse_spec
    from shardlab.sharding.transfer import transfer as transfer
    from shardlab.simulator.interpreter.replicas import ReplicasDiffer as ReplicasDiffer
    from shardlab.simulator.peek import forget_peeks as forget_peeks
    from shardlab.simulator.peek import peek as peek
    from shardlab.simulator.peek import peeks as peeks
    from shardlab.simulator.shard_map import shard_map as shard_map
    from shardlab.simulator.shards import shards as shards
    from shardlab.simulator.simulated_mode import simulated as simulated

__version__ = "0.1.0"

# Where each public name is defined. `import shardlab` must stay fast, so they load on first use.
_HOMES = {
    "Autosharding": "shardlab.autoshard.answer",
    "LabError": "shardlab.errors",
    "Layout": "shardlab.sharding.layout",
    "Mesh": "shardlab.sharding.mesh",
    "Recording": "shardlab.recording.recording",
    "ReplicasDiffer": "shardlab.simulator.interpreter.replicas",
    "Spec": "shardlab.sharding.spec",
    "Workload": "shardlab.planner.memory.workload",
    "autoshard": "shardlab.autoshard",
    "advise": "shardlab.planner.advice.make_advice",
    "check": "shardlab.analysis.trace_and_check",
    "forget_peeks": "shardlab.simulator.peek",
    "layout": "shardlab.sharding.layout",
    "load_plan": "shardlab.planner.snapshots.saved_plan",
    "load_recording": "shardlab.recording.recording",
    "record": "shardlab.recording.record_program",
    "reshard": "shardlab.sharding.reshard",
    "parse_mesh": "shardlab.sharding.mesh",
    "parse_spec": "shardlab.sharding.spec",
    "peek": "shardlab.simulator.peek",
    "peeks": "shardlab.simulator.peek",
    "plan": "shardlab.planner.make_plan",
    "shard_map": "shardlab.simulator.shard_map",
    "shards": "shardlab.simulator.shards",
    "simulated": "shardlab.simulator.simulated_mode",
    "trace": "shardlab.analysis.trace_and_check",
    "transfer": "shardlab.sharding.transfer",
    "transfer_weights": "shardlab.planner.weight_transfer",
}

__all__ = ["__version__", *_HOMES]


# PEP 562: called only for names that are not in the module yet, so once per name.
def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardlab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


# Without it, dir() would list the helpers above, and only the public names used so far.
def __dir__() -> list[str]:
    return sorted(__all__)
