"""`shardlab layout`: what each device stores of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import complete_mesh, complete_spec
from shardlab.cli.options import json_option, output_option

if TYPE_CHECKING:
    from shardlab.sharding.layout import Layout
    from shardlab.sharding.reshard import ReshardStep


@click.command("layout", short_help="Show which shard each device holds.")
@click.argument("array")
@click.option(
    "--mesh",
    required=True,
    metavar="AXES",
    shell_complete=complete_mesh,
    help="Mesh axes, such as data=2,model=4.",
)
@click.option(
    "--spec",
    default="",
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Mesh axes of each array dimension, such as None,model or (data,model),None.  "
    "[default: replicated]",
)
@click.option(
    "--to",
    "target_spec",
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Also show this spec, and the collectives that reshard the array to it.",
)
@click.option(
    "--to-mesh",
    metavar="AXES",
    shell_complete=complete_mesh,
    help="The mesh of --to, if it is another one: who sends which bytes to whom.",
)
@click.option("--separate", is_flag=True, help="The devices of --to-mesh are not those of --mesh.")
@click.option("--device", metavar="ID", help="Only this device, by id (5) or coordinate (1,1).")
@json_option
@output_option("--svg", "svg_file", "the picture as SVG")
def command(
    array: str,
    mesh: str,
    spec: str,
    target_spec: str | None,
    to_mesh: str | None,
    separate: bool,
    device: str | None,
    json_file: str | None,
    svg_file: str | None,
) -> None:
    """Show what each device stores of ARRAY, such as 4096x16384:bf16.

    \b
    shardlab layout 4096x16384:bf16 --spec None,model --mesh data=2,model=4
    shardlab layout 'f32[512,512]' --spec data --to None,data --mesh data=8
    shardlab layout 512x512 --spec fsdp --mesh fsdp=8 --to None,tensor --to-mesh tensor=4 --separate
    """
    from shardlab.cli.outputs import check_destinations, to_json_text, write_outputs
    from shardlab.sharding.layout import layout
    from shardlab.sharding.layout_data import layout_data
    from shardlab.sharding.mesh import parse_device
    from shardlab.sharding.reshard import reshard
    from shardlab.sharding.shape import parse_array

    check_destinations(json=json_file, svg=svg_file)
    shape, dtype = parse_array(array)
    source = layout(shape, spec, mesh, dtype)
    device_id = None if device is None else _device_id(source, parse_device(device))
    target, steps = None, None
    if to_mesh is not None:
        if svg_file is not None or device is not None:
            raise click.UsageError("--to-mesh has no picture or single device; use --json.")
        _show_transfer(source, target_spec or "", to_mesh, separate, json_file)
        return
    if target_spec is not None:
        target = layout(shape, target_spec, mesh, dtype)
        steps = reshard(source, target)

    def data() -> dict[str, Any]:
        return layout_data(source, target=target, steps=steps, device_id=device_id)

    outputs = {
        "--json": (json_file, lambda: to_json_text(data())),
        "--svg": (svg_file, lambda: _layout_svg(source, target, steps)),
    }
    if write_outputs(outputs):
        return
    if device_id is not None:
        _print_device(source, device_id)
    else:
        _print_picture(source)
    if target is not None and steps is not None:
        _print_steps(source, target, steps)
        if steps and device_id is None:
            click.echo()
            _print_picture(target)
        elif device_id is not None:
            click.echo()
            _print_device(target, device_id)


def _show_transfer(
    source: Layout, target_spec: str, to_mesh: str, is_separate: bool, json_file: str | None
) -> None:
    """Print or write the transfer of the array to another mesh."""
    from shardlab.cli.outputs import to_json_text, write_outputs
    from shardlab.sharding.layout import layout
    from shardlab.sharding.mesh import parse_mesh
    from shardlab.sharding.transfer import separate_mesh, transfer, transfer_text

    mesh = parse_mesh(to_mesh)
    if is_separate:
        mesh = separate_mesh(mesh, source.n_devices)
    target = layout(source.shape, target_spec, mesh, source.dtype)
    moved = transfer(source, target)

    def json_text() -> str:
        data = {**source.to_json(), "to": target.to_json(), "transfer": moved.to_json()}
        return to_json_text(data)

    if write_outputs({"--json": (json_file, json_text)}):
        return
    _print_picture(source)
    click.echo(f"\n{transfer_text(moved)}\n")
    _print_picture(target)


def _layout_svg(
    source: Layout, target: Layout | None, steps: tuple[ReshardStep, ...] | None
) -> str:
    from shardlab.sharding.reshard_picture import reshard_svg

    return source.svg() if target is None else reshard_svg(source, target, steps or ())


def _device_id(source: Layout, device: int | tuple[int, ...]) -> int:
    device_id = source.mesh.device_at(device) if isinstance(device, tuple) else device
    source.index(device_id)  # raises for a device that the mesh does not have
    return device_id


def _print_device(source: Layout, device_id: int) -> None:
    from shardlab.sharding.layout_render import device_text

    click.echo(device_text(source, device_id))


def _print_steps(source: Layout, target: Layout, steps: tuple[ReshardStep, ...]) -> None:
    from shardlab.sharding.reshard import reshard_text

    click.echo()
    click.echo(reshard_text(source, target, steps))


def _print_picture(source: Layout) -> None:
    """Print in color on a terminal; rich is slow to import and loaded only for that."""
    import shutil
    import sys

    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(source.text())
        return
    from rich.console import Console

    Console(width=shutil.get_terminal_size().columns).print(source)
