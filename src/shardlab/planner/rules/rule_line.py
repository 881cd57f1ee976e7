"""A rule as a plan stores it: from a strategy, or as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardlab.sharding.spec import Spec, parse_spec

# a regular expression, the path of one tensor, or a logical axis name
RuleKind = Literal["pattern", "path", "logical"]
RULE_KINDS: tuple[RuleKind, ...] = ("pattern", "path", "logical")


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """One rule as a user would write it: what it matches, and the spec.

    >>> RuleLine(pattern="kernel", spec=Spec("tensor"), is_trailing=True).spec_text
    "P(..., 'tensor')"
    >>> RuleLine(pattern="mlp", spec=Spec(("tensor", "expert")), kind="logical").spec_text
    'tensor, expert'
    """

    pattern: str
    spec: Spec  # of a logical rule one entry: the mesh axes that shard such a dimension
    kind: RuleKind = "pattern"
    is_trailing: bool = False  # the spec is for the last dimensions
    reason: str = ""

    @property
    def spec_text(self) -> str:
        """The spec as JAX prints it; of a logical rule the mesh axes."""
        if self.kind == "logical":
            return ", ".join(self.spec.mesh_axes) or "replicated"
        return f"P(..., {str(self.spec)[2:]}" if self.is_trailing else str(self.spec)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: `{"pattern": ..., "spec": ["...", "tensor"]}`."""
        reason = {"reason": self.reason} if self.reason else {}
        if self.kind == "logical":
            return {"logical": self.pattern, "axes": list(self.spec.mesh_axes), **reason}
        entries = [
            list(entry) if isinstance(entry, tuple) else entry for entry in self.spec.entries
        ]
        return {self.kind: self.pattern, "spec": ["..."] * self.is_trailing + entries, **reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RuleLine:
        """Return the rule that `to_json` wrote."""
        kind = next(kind for kind in RULE_KINDS if kind in data)
        reason = data.get("reason", "")
        if kind == "logical":
            return cls(pattern=data[kind], spec=Spec(tuple(data["axes"])), kind=kind, reason=reason)
        is_trailing = data["spec"][:1] == ["..."]
        return cls(
            pattern=data[kind],
            spec=parse_spec(data["spec"][is_trailing:]),
            kind=kind,
            is_trailing=is_trailing,
            reason=reason,
        )
