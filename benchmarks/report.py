"""The benchmark report: machine, one table per section, and every goal with its status."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table

_STATUS_COLOURS = {"reached": "green", "NOT reached": "bold red", "not measured": "yellow"}
# Above this load average, other processes take a visible share of two cores.
_BUSY_LOAD = 0.5


@dataclasses.dataclass(frozen=True)
class Goal:
    """A target and the measured value (None: not measured, `note` gives the reason)."""

    name: str
    target: float
    measured: float | None
    at_most: bool = True
    unit: str = "x"
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        if self.measured is None:
            return None
        if self.at_most:
            return self.measured <= self.target
        return self.measured >= self.target

    @property
    def status(self) -> str:
        """Return the status as text.

        >>> Goal("MLP step", 1.3, 1.42).status
        'NOT reached'
        >>> Goal("layouts", 100_000, None, at_most=False).status
        'not measured'
        """
        return {True: "reached", False: "NOT reached", None: "not measured"}[self.is_reached]


@dataclasses.dataclass
class Section:
    """One section of the report: a table, its goals, and the measurements for `--json`."""

    title: str
    columns: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    goals: list[Goal] = dataclasses.field(default_factory=list)
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def describe_machine() -> dict[str, Any]:
    """Return what the measurements depend on: processor, memory, load and versions."""
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_bytes / 1e9, 1),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def print_machine(console: Console, machine: dict[str, Any]) -> None:
    versions = [f"{name} {machine[name]}" for name in ("python", "jax", "jaxlib", "numpy")]
    console.print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"load {machine['load']}, {', '.join(versions)}"
    )
    if machine["load"] > _BUSY_LOAD:
        console.print("[yellow]Other processes are using this machine: expect noise.[/]")


def print_section(console: Console, section: Section) -> None:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for number, column in enumerate(section.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for note in section.notes:
        console.print(f"  {note}", highlight=False)


def print_goals(console: Console, goals: Sequence[Goal]) -> None:
    """Print one row per goal: its target, the measured value, and whether it is reached."""
    if not goals:  # with --only and few devices, a section can have none
        return
    table = Table(title="Goals", title_justify="left", title_style="bold")
    for column in ("what", "goal", "measured", "status"):
        table.add_column(column, justify="right" if column in ("goal", "measured") else "left")
    for goal in goals:
        limit = "at most" if goal.at_most else "at least"
        status = f"[{_STATUS_COLOURS[goal.status]}]{goal.status}[/]"
        if goal.measured is None and goal.note:
            status += f": {goal.note}"
        table.add_row(
            goal.name,
            f"{limit} {_value_text(goal, goal.target)}",
            _value_text(goal, goal.measured),
            status,
        )
    console.print(table)


def _value_text(goal: Goal, value: float | None) -> str:
    if value is None:
        return "-"
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return number + goal.unit


def report_json(machine: dict[str, Any], sections: Sequence[Section]) -> dict[str, Any]:
    return {
        "machine": machine,
        "sections": [dataclasses.asdict(section) for section in sections],
        "goals": [
            {**dataclasses.asdict(goal), "status": goal.status}
            for section in sections
            for goal in section.goals
        ],
    }


def milliseconds_text(seconds: float | None) -> str:
    """Return a duration in milliseconds for a table.

    >>> milliseconds_text(0.0123), milliseconds_text(2.5), milliseconds_text(None)
    ('12.3', '2,500', '-')
    """
    if seconds is None:
        return "-"
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def milliseconds_range_text(seconds: Sequence[float]) -> str:
    """Return median, minimum and maximum in milliseconds for a table.

    >>> milliseconds_range_text([0.012, 0.011, 0.250])
    '12.0 (11.0-250)'
    """
    low, high = milliseconds_text(min(seconds)), milliseconds_text(max(seconds))
    return f"{milliseconds_text(statistics.median(seconds))} ({low}-{high})"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio for a table.

    >>> ratio_text(1.234), ratio_text(34.4), ratio_text(0.002), ratio_text(None)
    ('1.23x', '34x', '1/500', '-')
    """
    if ratio is None:
        return "-"
    if ratio < 0.1:
        return f"1/{1 / ratio:,.0f}"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"
