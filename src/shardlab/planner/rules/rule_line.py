"""A rule as a plan stores it: from a strategy, or as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardlab.sharding.spec import Spec, parse_spec

# a regular expression, one tensor's path, or the logical name of array axes
RuleKind = Literal["pattern", "path", "logical"]


RULE_KINDS: tuple[RuleKind, ...] = ("pattern", "path", "logical")


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """One rule as a person would write it: what it is for, and the spec.

    >>> RuleLine("kernel", Spec("tensor"), ends=True).spec_text
    "P(..., 'tensor')"
    >>> RuleLine("mlp", Spec(("tensor", "expert")), "logical").spec_text
    'tensor, expert'
    """

    pattern: str
    spec: Spec  # of a logical name one entry: the mesh axes that cut such an array axis
    kind: RuleKind = "pattern"
    is_trailing: bool = False  # the spec is that of the last array axes
    reason: str = ""

    @property
    def spec_text(self) -> str:
        if self.kind == "logical":
            return ", ".join(self.spec.mesh_axes) or "whole"
        return f"P(..., {str(self.spec)[2:]}" if self.is_trailing else str(self.spec)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: `{"pattern": ..., "spec": ["...", "tensor"]}`."""
        reason = {"reason": self.reason} if self.reason else {}
        if self.kind == "logical":
            return {"logical": self.pattern, "axes": list(self.spec.mesh_axes), **reason}
        entries = [list(each) if isinstance(each, tuple) else each for each in self.spec.entries]
        return {self.kind: self.pattern, "spec": ["..."] * self.is_trailing + entries, **reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RuleLine:
        """Return the rule that `to_json` wrote."""
        kind = next(kind for kind in RULE_KINDS if kind in data)
        reason = data.get("reason", "")
        if kind == "logical":
            return cls(pattern=data[kind], spec=Spec(tuple(data["axes"])), kind=kind, reason=reason)
        ends = data["spec"][:1] == ["..."]
        return cls(
            pattern=data[kind],
            spec=parse_spec(data["spec"][ends:]),
            kind=kind,
            is_trailing=ends,
            reason=reason,
        )
