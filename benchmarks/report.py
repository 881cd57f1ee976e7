"""The report: tables as they come in, and every bar with its verdict at the end."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.section import Bar, Section

_COLOURS = {"reached": "green", "NOT reached": "bold red", "not measured": "yellow"}


def show_machine(console: Console, machine: dict[str, Any]) -> None:
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if machine["load"] > 0.5:
        console.print("[yellow]The machine is busy with other work: expect noise.[/]")


def show(console: Console, section: Section) -> None:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for number, column in enumerate(section.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for note in section.notes:
        console.print(f"  {note}", highlight=False)


def show_bars(console: Console, bars: list[Bar]) -> None:
    """List every bar: what was to be reached, the figure, the verdict."""
    table = Table(title="To reach", title_justify="left", title_style="bold")
    for column in ("what", "bar", "figure", "verdict"):
        table.add_column(column, justify="right" if column in ("bar", "figure") else "left")
    for bar in bars:
        sign = "<=" if bar.at_most else ">="
        verdict = f"[{_COLOURS[bar.verdict]}]{bar.verdict}[/]"
        if bar.figure is None and bar.note:
            verdict += f": {bar.note}"
        table.add_row(
            bar.what, f"{sign} {_figure(bar, bar.bound)}", _figure(bar, bar.figure), verdict
        )
    console.print(table)


def as_json(machine: dict[str, Any], sections: list[Section]) -> dict[str, Any]:
    return {
        "machine": machine,
        "sections": [dataclasses.asdict(section) for section in sections],
        "bars": [
            {**dataclasses.asdict(bar), "verdict": bar.verdict}
            for section in sections
            for bar in section.bars
        ],
    }


def _figure(bar: Bar, value: float | None) -> str:
    if value is None:
        return "-"
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return number + bar.unit
