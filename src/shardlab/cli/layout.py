"""`shardlab layout`: what each device holds of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from shardlab.sharding.layout import Layout
    from shardlab.sharding.reshard import ReshardStep


@click.command("layout")
@click.argument("array")
@click.option("--mesh", required=True, metavar="AXES", help="Mesh axes, such as data=2,model=4.")
@click.option(
    "--spec",
    default="",
    metavar="SPEC",
    help="Mesh axes for each array axis, such as None,model or (data,model),None. "
    "Without it, every device holds the whole array.",
)
@click.option("--to", metavar="SPEC", help="Also show the collectives that lead to this spec.")
@click.option("--device", metavar="ID", help="One device only, by id (5) or coordinate (1,1).")
@click.option("--json", "as_json", is_flag=True, help="Print plain data instead of a picture.")
@click.option(
    "--svg",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write the picture to FILE (- for the terminal).",
)
def command(
    array: str,
    mesh: str,
    spec: str,
    to: str | None,
    device: str | None,
    as_json: bool,
    svg: TextIO | None,
) -> None:
    """Show what each device holds of ARRAY, such as 4096x16384:bf16.

    \b
    shardlab layout 4096x16384:bf16 --spec None,model --mesh data=2,model=4
    shardlab layout 'f32[512,512]' --spec data --to None,data --mesh data=8
    """
    from shardlab.sharding.layout import layout
    from shardlab.sharding.mesh import parse_device
    from shardlab.sharding.shape import parse_array

    if as_json and svg is not None:
        raise click.UsageError("--json and --svg are two outputs: choose one.")
    shape, dtype = parse_array(array)
    one = layout(shape, spec, mesh, dtype)
    other = None if to is None else layout(shape, to, mesh, dtype)
    steps = () if other is None else _moves(one, other)
    place = None if device is None else parse_device(device)
    if as_json:
        _print_json(one, other, steps, place)
    elif svg is not None:
        _write_svg(one, svg)
    elif place is not None:
        _print_device(one, place)
    else:
        _print_picture(one)
    if other is not None and not as_json and (svg is None or svg.name != "-"):
        _print_moves(one, other, steps)


def _moves(one: Layout, other: Layout) -> tuple[ReshardStep, ...]:
    from shardlab.sharding.reshard import reshard

    return reshard(one, other)


def _write_svg(one: Layout, svg: TextIO) -> None:
    svg.write(one.svg() + "\n")
    if svg.name != "-":
        click.echo(f"wrote {svg.name}")


def _print_json(
    one: Layout,
    other: Layout | None,
    steps: tuple[ReshardStep, ...],
    place: int | tuple[int, ...] | None,
) -> None:
    import json

    data = one.to_json()
    if place is not None:
        data["device"] = _device_json(one, place)
    if other is not None:
        data["moves"] = [step.to_json() for step in steps]
    click.echo(json.dumps(data, indent=2))


def _device_json(one: Layout, place: int | tuple[int, ...]) -> dict[str, Any]:
    device = _device_id(one, place)
    return {
        "id": device,
        "coordinate": dict(zip(one.mesh.axis_names, one.mesh.coordinate(device), strict=True)),
        "index": [[each.start, each.stop] for each in one.index(device)],
    }


def _device_id(one: Layout, place: int | tuple[int, ...]) -> int:
    return one.mesh.device_at(place) if isinstance(place, tuple) else place


def _print_device(one: Layout, place: int | tuple[int, ...]) -> None:
    from shardlab.sharding.layout_picture import device_text

    click.echo(device_text(one, _device_id(one, place)))


def _print_moves(one: Layout, other: Layout, steps: tuple[ReshardStep, ...]) -> None:
    from shardlab.sharding.reshard import reshard_text

    click.echo()
    click.echo(reshard_text(one, other, steps))


def _print_picture(one: Layout) -> None:
    """Print in colour where there is a terminal to show it; rich is loaded only for that."""
    import shutil
    import sys

    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(one.text())
        return
    from rich.console import Console

    Console(width=shutil.get_terminal_size().columns).print(one)
