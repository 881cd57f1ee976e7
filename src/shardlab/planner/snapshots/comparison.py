"""What has changed from one plan to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# question: the model, the mesh, a choice, the chip; item: what is counted by formula
Topic = Literal["question", "total", "tensor", "item", "rule", "finding"]
TOPICS: tuple[Topic, ...] = ("question", "total", "tensor", "item", "rule", "finding")


@dataclass(frozen=True)
class Change:
    """One thing that differs: what it is, and how it was and is; empty where it was or is not.

    The bytes are those of one device, where the change has any.
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
    """All that differs between two plans. Made by `Plan.compare`."""

    title: str
    changes: tuple[Change, ...]
    n_compared: int  # tensors that both have

    @property
    def same(self) -> bool:
        return not self.changes

    def of(self, topic: Topic) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.topic == topic)

    def __repr__(self) -> str:
        n = len(self.changes)
        said = "the same" if self.same else f"{n:,} change{'s' * (n != 1)}"
        return f"<Comparison of {self.title}: {said}>"

    def __str__(self) -> str:
        from shardlab.planner.snapshots.comparison_text import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from shardlab.planner.snapshots.comparison_text import comparison_html

        return comparison_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.planner.snapshots.comparison_text import comparison_rich

        yield comparison_rich(self, options.max_width)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "same": self.same,
            "n_compared": self.n_compared,
            "changes": [change.to_json() for change in self.changes],
        }
