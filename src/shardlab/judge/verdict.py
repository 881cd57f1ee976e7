"""Verdicts on one case: the codes with their labels, and one verdict with its message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Every code with its label, most severe first: that verdict of a case is shown first. The label is
# shown wherever the code is.
VERDICTS = {
    "IE": "internal error of the judge; not counted",
    "CE": "the submission cannot be loaded",
    "HANG": "devices block forever in a collective",
    "VMA": "replication cannot be proven",
    "SPEC": "a spec does not fit its array or the mesh",
    "RTE": "runtime error",
    "TLE": "time limit exceeded",
    "MLE": "memory limit exceeded",
    "OLE": "output limit exceeded",
    "SHAPE": "wrong structure or shape",
    "DTYPE": "wrong dtype",
    "REPLICAS": "replicas that must be equal differ",
    "WA": "wrong values",
    "SHARD": "right values, wrong sharding",
    "API": "a required construct is missing",
    "COMM": "more communication than allowed",
    "MEM": "more memory than allowed",
    "AC": "accepted",
}

# Named causes: the pattern of a known mistake in the numbers of a failed run.
CAUSES = {
    "factor_of_n": "the result is n times the expected one",
    "divided_by_n": "the result is the expected one divided by n",
    "shards_permuted": "the expected shards, in another order",
    "only_shard_0": "the first shard is right, and no other",
    "bias_n_times": "one term of the result is added n times",
    "gradient_scaled_by_n": "a gradient is n times the expected one",
    "mean_of_means": "the mean of the mean of each shard",
    "same_random_numbers": "every shard has the same random numbers",
    "missing_psum": "the values of the devices add up to the expected one",
    "missing_pmean": "the mean of the devices' values is the expected one",
    "missing_pmax": "the maximum of the devices' values is the expected one",
    "missing_pmin": "the minimum of the devices' values is the expected one",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict, with the parts of an error: code, what, where, fix.

    >>> print(Verdict(code="WA", what="Off by exactly 4x, the size of 'data'.", fix="use pmean."))
    WA: wrong values
      Off by exactly 4x, the size of 'data'.
      try:   use pmean.
    """

    code: str
    what: str
    where: str = ""  # a line of the submission, such as "line 12: return x"
    fix: str = ""
    cause: str = ""  # one of CAUSES, if one explains the numbers
    shows: tuple[str, ...] = ()  # lines below the message, such as JAX's own
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the label of the code, or one that says more about this verdict."""
        return str(self.details.get("label") or VERDICTS[self.code])

    @property
    def title(self) -> str:
        """Return the code with its label.

        >>> Verdict(code="VMA", what="").title
        'VMA: replication cannot be proven'
        """
        return f"{self.code}: {self.label}"

    def __str__(self) -> str:
        lines = [self.title]
        if self.what:
            lines.append(f"  {self.what}")
        if self.where:
            lines.append(f"  where: {self.where}")
        lines += [f"    {line}" for line in self.shows]
        if self.fix:
            lines.append(f"  try:   {self.fix}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "shows": list(self.shows), "details": dict(self.details)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        return cls(**{**data, "shows": tuple(data["shows"])})


def sort_by_severity(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts, most severe first.

    >>> [v.code for v in sort_by_severity(Verdict(code=code, what="") for code in ("COMM", "WA"))]
    ['WA', 'COMM']
    """
    order = list(VERDICTS)
    return tuple(sorted(verdicts, key=lambda verdict: order.index(verdict.code)))
