"""The parsed arguments of `plan()`: every field is a typed value, text is parsed before."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardlab.hardware.chips import Hardware
from shardlab.hardware.frameworks import Framework
from shardlab.planner.memory.dtype_policy import DtypePolicy, check_trainable
from shardlab.planner.memory.optimizer import Optimizer, parse_optimizer
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.plan import MemoryBudget
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.strategy import Strategy
from shardlab.sharding.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Model, mesh and options of one plan; remedies `replace` one of them and plan again."""

    model: Model
    mesh: Mesh
    rules: Rules
    strategy: Strategy | None = None  # instead of rules; zero1 and zero2 also on top of them
    optimizer: Optimizer = field(default_factory=lambda: parse_optimizer("none"))
    policy: DtypePolicy = field(default_factory=DtypePolicy)
    workload: Workload | None = None
    budget: MemoryBudget | None = None
    hardware: Hardware | None = None
    framework: Framework | None = None  # None: the usual one for the hardware and the mesh
    stack: str | None = None  # which tensors of the model are stacked into one array

    def __post_init__(self) -> None:
        if self.is_training:
            check_trainable(self.policy)

    @property
    def is_training(self) -> bool:
        return self.optimizer.is_training
