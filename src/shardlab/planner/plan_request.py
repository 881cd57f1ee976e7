"""What a plan is made for, parsed: model, mesh, rules, workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardlab.planner.memory.dtype_policy import DtypePolicy, check_trained
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.plan import MemoryBudget
from shardlab.planner.rules.rules import Rules
from shardlab.sharding.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Model, mesh and choices; with `replace` it is the same question but for one choice."""

    model: Model
    mesh: Mesh
    rules: Rules
    strategy: str | None = None  # in place of rules
    optimizer: str = "none"
    policy: DtypePolicy = field(default_factory=DtypePolicy)
    workload: Workload | None = None
    room: MemoryBudget | None = None
    stack: str | None = None  # what of the model was stacked

    def __post_init__(self) -> None:
        if self.is_training:
            check_trained(self.policy)

    @property
    def is_training(self) -> bool:
        return self.optimizer != "none"
