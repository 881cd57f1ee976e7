"""What a person asked to be planned, parsed: the question that a plan answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardlab.layouts.mesh import Mesh
from shardlab.plans.memory.policy import Policy, check_trained
from shardlab.plans.memory.workload import Workload
from shardlab.plans.model import Model
from shardlab.plans.rules.rules import Rules
from shardlab.records.plan import Room


@dataclass(frozen=True)
class Asked:
    """Model, mesh and choices; with `replace` it is the same question but for one choice."""

    model: Model
    mesh: Mesh
    rules: Rules
    strategy: str | None = None  # in place of rules
    optimizer: str = "none"
    policy: Policy = field(default_factory=Policy)
    workload: Workload | None = None
    room: Room | None = None
    stack: str | None = None  # what of the model was stacked

    def __post_init__(self) -> None:
        if self.is_training:
            check_trained(self.policy)

    @property
    def is_training(self) -> bool:
        return self.optimizer != "none"
