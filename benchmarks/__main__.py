"""`python -m benchmarks`: measure, print the tables, and say of every bar whether it is reached."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import TextIO

import click
from rich.console import Console

from benchmarks import (
    fresh,
    jit_trace,
    judging,
    layouts,
    machine,
    planning,
    programs,
    report,
    shard_map_trace,
    shell,
    steps,
    torch_ranks,
)
from benchmarks.options import QUICK, Options
from benchmarks.section import Section

_SECTIONS: dict[str, Callable[[Options], Section]] = {
    **{name: functools.partial(steps.run, name) for name in programs.NAMES},
    "one-core": functools.partial(steps.run_one_core, "mlp"),
    "one-core-wide": functools.partial(steps.run_one_core, "mlp-wide"),
    "first-call": fresh.first_call,
    "compile": fresh.compiling,
    "trace": shard_map_trace.run,
    "jit-trace": jit_trace.run,
    "shell": shell.run,
    "layouts": layouts.run,
    "plan": planning.run,
    "judge": judging.run,
    "torch": torch_ranks.run,
}
# Wants an environment of its own, and long: only when asked for.
_EXTRAS = ("torch",)


def _numbers(_: object, __: object, text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    allowed = [str(n) for n in programs.DEVICES]
    unknown = [part for part in text.split(",") if part not in allowed]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(allowed)}")
    return tuple(int(part) for part in text.split(","))


def _names(_: object, __: object, text: str | None) -> tuple[str, ...]:
    usual = tuple(name for name in _SECTIONS if name not in _EXTRAS)
    names = tuple(text.split(",")) if text else usual
    unknown = [name for name in names if name not in _SECTIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(_SECTIONS)}")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="8 and 64 devices, few rounds: a smoke test.")
@click.option("--only", callback=_names, metavar="NAMES", help=f"Some of {','.join(_SECTIONS)}.")
@click.option("--devices", callback=_numbers, metavar="N,N", help="Some of 8,64,256,512,1024.")
@click.option("--torch", is_flag=True, help="Also PyTorch's LocalTensor (installs torch, once).")
@click.option("--json", "file", type=click.File("w"), help="Also write all figures to this file.")
def main(
    quick: bool,
    only: tuple[str, ...],
    devices: tuple[int, ...] | None,
    torch: bool,
    file: TextIO | None,
) -> None:
    """Time the simulator against the unsharded program and real host devices."""
    options = QUICK if quick else Options()
    if devices:
        options = dataclasses.replace(options, devices=devices)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # tables in a file or a pipe are read whole
    facts = machine.describe()
    report.show_machine(console, facts)
    sections = []
    for name in dict.fromkeys([*only, *(_EXTRAS if torch else ())]):
        with console.status(f"measuring {name} ..."):
            sections.append(_SECTIONS[name](options))
        report.show(console, sections[-1])
    report.show_bars(console, [bar for section in sections for bar in section.bars])
    if file:
        json.dump(report.as_json(facts, sections), file, indent=1)


if __name__ == "__main__":
    main()
