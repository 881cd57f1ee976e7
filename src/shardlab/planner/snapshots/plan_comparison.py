"""The differences between two plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# question: model, mesh, options, hardware; item: memory that is counted by formula
Topic = Literal["question", "total", "tensor", "item", "rule", "finding"]
TOPICS: tuple[Topic, ...] = ("question", "total", "tensor", "item", "rule", "finding")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference: its name, the old value and the new one; "" if it did not or does not exist.

    The bytes are per device, if the change has any.
    """

    topic: Topic
    name: str
    old: str
    new: str
    old_bytes: int | None = None
    new_bytes: int | None = None

    @property
    def verb(self) -> Literal["added", "removed", "changed"]:
        return "added" if not self.old else "changed" if self.new else "removed"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "verb": self.verb}


@dataclass(frozen=True, repr=False)
class Comparison:
    """All differences between two plans. Made by `Plan.compare`."""

    title: str
    changes: tuple[Change, ...]
    n_compared: int  # tensors that both plans have

    @property
    def same(self) -> bool:
        return not self.changes

    def changes_of(self, topic: Topic) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.topic == topic)

    def __repr__(self) -> str:
        n_changes = len(self.changes)
        result = "the same" if self.same else f"{n_changes:,} change{'s' * (n_changes != 1)}"
        return f"<Comparison of {self.title}: {result}>"

    def __str__(self) -> str:
        from shardlab.planner.snapshots.plan_comparison_text import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from shardlab.planner.snapshots.plan_comparison_text import comparison_html

        return comparison_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.planner.snapshots.plan_comparison_text import comparison_rich

        yield comparison_rich(self, options.max_width)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "same": self.same,
            "n_compared": self.n_compared,
            "changes": [change.to_json() for change in self.changes],
        }
