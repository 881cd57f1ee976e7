"""`shardlab trace`: what a program communicates."""

from __future__ import annotations

from typing import Any

import click

from shardlab.cli.options import ARGUMENTS_HELP, ask, program_options

_HELP = f"""List what a program communicates: bytes, and time on named hardware.

    PROGRAM is file.py:function, module:function, or a whole script, of which every shard_map and
    every sharded jit that it runs is traced.

    \b
    shardlab trace train.py:step --mesh data=16,model=32 --hardware tpu-v5p
    shardlab trace mypackage.model:loss 'f32[1024,4096]' 'bf16[4096,4096]' --mesh data=8
    shardlab trace train.py --json trace.json -- --steps 2
{ARGUMENTS_HELP}
    \b
    Exit codes
      0    traced; findings, if any, are listed but do not fail (see shardlab check)
      2    the program could not be looked at, or the command was not understood
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error; standard output holds the trace.
    """


@click.command("trace", help=_HELP)
@program_options
@click.option("--mesh", metavar="AXES", help="Mesh axes, such as data=16,model=32.")
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    mesh: str | None,
    devices: int | None,
    json_to: str | None,
    html_to: str | None,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.outputs import check_places
    from shardlab.cli.target import job, parse_target
    from shardlab.layouts.mesh import parse_mesh

    check_places(json=json_to, html=html_to)
    target = parse_target(program)
    meshes = [] if mesh is None else [str(parse_mesh(mesh))]
    told = job("trace", target, args, args_from, meshes=meshes, devices=devices, run=False)
    answer = ask(told, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    _write(answer["traces"], json_to, html_to)


def _write(traces: list[dict[str, Any]], json_to: str | None, html_to: str | None) -> None:
    from shardlab.cli.outputs import json_text, page, show, write_all
    from shardlab.records.trace import Trace

    records = [Trace.from_json(data) for data in traces]

    outputs = {
        "--json": (json_to, lambda: json_text([each.to_json() for each in records])),
        "--html": (html_to, lambda: page("trace", records)),
    }
    if not write_all(outputs):
        for each in records:
            show(each)
