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
    from shardlab.engine import ReplicasDiffer as ReplicasDiffer
    from shardlab.engine import forget_peeks as forget_peeks
    from shardlab.engine import peek as peek
    from shardlab.engine import peeks as peeks
    from shardlab.engine import shard_map as shard_map
    from shardlab.engine import shards as shards
    from shardlab.engine import simulated as simulated
    from shardlab.errors import LabError as LabError
    from shardlab.lab import check as check
    from shardlab.lab import trace as trace
    from shardlab.layouts.mesh import Mesh as Mesh
    from shardlab.layouts.mesh import parse_mesh as parse_mesh
    from shardlab.layouts.moves import moves as moves
    from shardlab.layouts.shards import Layout as Layout
    from shardlab.layouts.shards import layout as layout
    from shardlab.layouts.spec import Spec as Spec
    from shardlab.layouts.spec import parse_spec as parse_spec
    from shardlab.plans.advice.advise import advise as advise
    from shardlab.plans.golden.saved import load_plan as load_plan
    from shardlab.plans.memory.workload import Workload as Workload
    from shardlab.plans.plan import plan as plan

__version__ = "0.1.0"

_HOMES = {
    "LabError": "shardlab.errors",
    "Layout": "shardlab.layouts.shards",
    "Mesh": "shardlab.layouts.mesh",
    "ReplicasDiffer": "shardlab.engine",
    "Spec": "shardlab.layouts.spec",
    "Workload": "shardlab.plans.memory.workload",
    "advise": "shardlab.plans.advice.advise",
    "check": "shardlab.lab",
    "forget_peeks": "shardlab.engine",
    "layout": "shardlab.layouts.shards",
    "load_plan": "shardlab.plans.golden.saved",
    "moves": "shardlab.layouts.moves",
    "parse_mesh": "shardlab.layouts.mesh",
    "parse_spec": "shardlab.layouts.spec",
    "peek": "shardlab.engine",
    "peeks": "shardlab.engine",
    "plan": "shardlab.plans.plan",
    "shard_map": "shardlab.engine",
    "shards": "shardlab.engine",
    "simulated": "shardlab.engine",
    "trace": "shardlab.lab",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardlab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
