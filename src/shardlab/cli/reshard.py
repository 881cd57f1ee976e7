"""`shardlab reshard`: what it takes to move a model's weights from one mesh to another."""

from __future__ import annotations

from typing import Any

import click

from shardlab.cli.completion import complete_mesh, complete_model, complete_strategy
from shardlab.cli.options import add_options, hardware_option, html_option, json_option

_HELP = """Show the transfer of a model's weights from one mesh to another.

    From a trainer to inference servers, for example, as in reinforcement learning: bytes sent by
    each device, peak memory, a chunk size, time on named hardware, and a check that every element
    of every destination shard arrives exactly once.

    \b
    shardlab reshard llama3-70b --mesh fsdp=64 --strategy fsdp \\
        --to-mesh data=4,tensor=8 --to-strategy tensor --separate \\
        --hardware h100 --peak-memory 80GB
    shardlab reshard llama3-8b --mesh fsdp=8 --strategy fsdp --to-mesh tensor=8 --to-strategy tensor

    Both meshes start at device 0, so a device can be in both. With --separate the second mesh has
    devices of its own.

    \b
    Exit codes
      0    planned
      1    the memory limit is too small for the shards alone
      2    the model, a mesh or an option cannot be used
    """

_options = add_options(
    click.argument("model", metavar="MODEL", shell_complete=complete_model),
    click.option(
        "--mesh",
        required=True,
        metavar="AXES",
        shell_complete=complete_mesh,
        help="The mesh that has the weights, such as fsdp=64.",
    ),
    click.option(
        "--strategy",
        metavar="NAME",
        shell_complete=complete_strategy,
        help="Its strategy, such as fsdp; by default, that of its axis names.",
    ),
    click.option("--rules", metavar="FILE", help="Its specs, by rules in a TOML file."),
    click.option(
        "--to-mesh",
        required=True,
        metavar="AXES",
        shell_complete=complete_mesh,
        help="The mesh that gets the weights, such as data=4,tensor=8.",
    ),
    click.option(
        "--to-strategy",
        metavar="NAME",
        shell_complete=complete_strategy,
        help="Its strategy, such as tensor; by default, that of its axis names.",
    ),
    click.option("--to-rules", metavar="FILE", help="Its specs, by rules in a TOML file."),
    click.option(
        "--separate", "is_separate", is_flag=True, help="The second mesh has devices of its own."
    ),
    click.option("--dtype", metavar="DTYPE", help="Dtype that is sent, if not the model's."),
    click.option("--stack", metavar="WHAT", help="Stack experts, layers or all, as in `plan`."),
    click.option("--peak-memory", metavar="BYTES", help="Peak memory of a device, such as 80GB."),
    hardware_option,
    json_option,
    html_option,
    click.option("--all", "show_all", is_flag=True, help="List every tensor."),
)


@click.command("reshard", help=_HELP, short_help="Show the transfer of weights between meshes.")
@_options
def command(model: str, **options: Any) -> None:
    from shardlab._text.units import parse_bytes
    from shardlab.cli.outputs import (
        check_destinations,
        html_page,
        show_lines,
        to_json_text,
        write_outputs,
    )
    from shardlab.planner.weight_transfer import transfer_weights
    from shardlab.planner.weight_transfer_text import weight_transfer_sheet
    from shardlab.render.sheet import sheet_html, sheet_lines

    check_destinations(json=options["json_file"], html=options["html_file"])
    limit = options["peak_memory"]
    names = ("strategy", "to_strategy", "rules", "to_rules", "dtype", "is_separate", "hardware")
    moved = transfer_weights(
        model,
        options["mesh"],
        options["to_mesh"],
        memory_limit=None if limit is None else parse_bytes(limit),
        stack=options["stack"],
        **{name: options[name] for name in names},
    )
    sheet = weight_transfer_sheet(moved, show_all=options["show_all"])
    outputs = {
        "--json": (options["json_file"], lambda: to_json_text(moved.to_json())),
        "--html": (options["html_file"], lambda: html_page(sheet.title, [sheet_html(sheet)])),
    }
    if not write_outputs(outputs):
        show_lines(lambda width: sheet_lines(sheet, width))
    is_impossible = limit is not None and moved.memory.chunk_bytes is None and moved.total_bytes
    click.get_current_context().exit(1 if is_impossible else 0)
