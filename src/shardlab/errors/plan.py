"""Models and rules that cannot be planned."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class PlanError(LabError, ValueError):
    """A model, a rule or a choice that a plan cannot use."""

    code = "plan"


class UnknownModel(PlanError):
    """A name that is no preset, and no file either."""

    code = "plan.unknown_model"


class BadModel(PlanError):
    """A file or an object whose tensors cannot be read."""

    code = "plan.bad_model"


class BadRules(PlanError):
    """Rules that cannot be read, or a rule that cannot be applied."""

    code = "plan.bad_rules"


class UnknownChoice(PlanError):
    """A strategy, an optimizer or a policy that there is not."""

    code = "plan.unknown_choice"


class BadPlan(PlanError):
    """A saved plan that cannot be read."""

    code = "plan.bad_plan"
