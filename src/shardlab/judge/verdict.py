"""What the judge says of one case, and of a whole submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Every verdict there is, the most telling first: of several about a case, it is shown first.
VERDICTS = {
    "IE": "the judge failed, not the answer; it is not counted",
    "CE": "the answer cannot be loaded",
    "HANG": "devices would wait for ever in a collective",
    "VMA": "JAX cannot prove that an output is the same on every device",
    "SPEC": "a spec does not fit the array or the mesh",
    "RTE": "the answer raised an exception",
    "TLE": "the time limit was reached",
    "MLE": "the memory limit was reached",
    "OLE": "the answer printed or returned too much",
    "SHAPE": "the result has another structure or shape",
    "DTYPE": "the result has another dtype",
    "REPLICAS": "copies that should be equal differ",
    "WA": "values differ",
    "SHARD": "the values are right and the layout is not",
    "API": "something that the task asks for is not in the program",
    "COMM": "it communicates more than the task allows",
    "MEM": "it holds more than the task allows",
    "AC": "all properties hold",
}

# Named causes: what the numbers of a failed run have in common with a known mistake.
CAUSES = {
    "factor_of_n": "the result is n times the right one",
    "divided_by_n": "the result is the right one divided by n",
    "shards_permuted": "the right pieces, in another order",
    "only_shard_0": "the first piece is right, and no other",
    "bias_n_times": "one term of the result is counted n times",
    "gradient_scaled_by_n": "a gradient is n times the right one",
    "mean_of_means": "a mean of each piece's own mean",
    "same_random_numbers": "every piece drew the same random numbers",
    "missing_psum": "the devices' values add up to the right one",
    "missing_pmean": "the mean of the devices' values is the right one",
    "missing_pmax": "the largest of the devices' values is the right one",
    "missing_pmin": "the smallest of the devices' values is the right one",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict, in the parts of an error: code, what, where, fix.

    >>> print(Verdict("WA", "Off by exactly 4x, the size of 'data'.", cause="factor_of_n"))
    WA  Off by exactly 4x, the size of 'data'.
    """

    code: str
    what: str
    where: str = ""  # a place in the answer, such as line 12
    fix: str = ""
    cause: str = ""  # a named cause where there is one, such as factor_of_n
    shows: tuple[str, ...] = ()  # lines shown beneath, such as JAX's own words
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.code}  {self.what}"]
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


def most_telling(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts in the order in which a person wants them.

    >>> [v.code for v in most_telling([Verdict("COMM", ""), Verdict("WA", "")])]
    ['WA', 'COMM']
    """
    order = list(VERDICTS)
    return tuple(sorted(verdicts, key=lambda verdict: order.index(verdict.code)))
