"""`shardlab autoshard`: the right shardings for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_mesh, complete_path
from shardlab.cli.options import (
    PROGRAM_ARGUMENTS_HELP,
    add_options,
    hardware_option,
    html_option,
    json_option,
    memory_limit_option,
    output_option,
    quiet_option,
)

if TYPE_CHECKING:
    from shardlab.autoshard.answer import Autosharding

_HELP = f"""Find shardings of a jit program: specs, constraints, what they cost, and why.

    PROGRAM is file.py:function or module:function: a train step, a loss, an inference step. Its
    arguments may be shapes, so nothing of their size is allocated. Specs that they already have,
    and constraints inside of the program, are kept. The answer is proven: XLA's own partitioner
    must insert the same collectives, and the program must return the values of the unsharded one.

    \b
    shardlab autoshard train.py:step --mesh data=16,model=4 --hardware tpu-v5p
    shardlab autoshard train.py:step --devices 256 --hardware tpu-v5p --memory 64GB
    shardlab autoshard train.py:step --devices 64 --hardware h100 --rules rules.toml
{PROGRAM_ARGUMENTS_HELP}
    \b
    Exit codes
      0    found, and not disproven; the answer says what is proven
      2    nothing fits, every answer failed a proof, the program cannot be used,
           or the command is invalid
      124  the time limit was reached (by default 120 s and what --budget and
           --proof-limit need)
      130  interrupted
    """


@click.command("autoshard", help=_HELP, short_help="Find shardings for any jit program.")
@click.argument("program", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@add_options(
    click.option(
        "--args",
        "args_from",
        metavar="NAME",
        help="Name of a tuple or function in the same file that gives the arguments.",
    ),
    click.option(
        "--mesh",
        metavar="AXES",
        shell_complete=complete_mesh,
        help="Mesh axes, such as data=16,model=4.",
    ),
    click.option(
        "--devices",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="Instead of a mesh: search meshes of N devices too.",
    ),
)
@hardware_option
@add_options(
    click.option(
        "--memory",
        metavar="BYTES",
        help="Memory of a device that may be used, such as 64GB.  [default: 90 % of the chip's]",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Time to search; the best shardings until then are the answer.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Order in which pairs are tried."
    ),
)
@add_options(
    click.option(
        "--no-proof", is_flag=True, help="Show the best shardings found without proving them."
    ),
    click.option(
        "--proof-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="Time to prove the answer; the answer says what was not proven by then.",
    ),
)
@output_option("--rules", "rules_file", "the specs as rules for shardlab plan --rules")
@json_option
@html_option
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the program after this time, with exit code 124.",
)
@memory_limit_option
@quiet_option
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    mesh: str | None,
    devices: int | None,
    hardware: str | None,
    memory: str | None,
    budget: float,
    seed: int,
    no_proof: bool,
    proof_limit: float,
    rules_file: str | None,
    json_file: str | None,
    html_file: str | None,
    time_limit: float | None,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.jobs import raise_failure, run_job
    from shardlab.cli.outputs import check_destinations
    from shardlab.execution.messages import AutoshardOptions, Job
    from shardlab.execution.target import check_arguments, parse_target
    from shardlab.hardware.chips import parse_hardware
    from shardlab.sharding.mesh import parse_mesh

    check_destinations(json=json_file, html=html_file, rules=rules_file)
    if (mesh is None) == (devices is None):
        raise click.UsageError("Give either --mesh data=16,model=4 or --devices 64.")
    target = parse_target(program)
    if target.kind == "script":
        raise click.UsageError("autoshard needs a function: file.py:function.")
    check_arguments(target, args, args_from)
    if hardware is not None:
        parse_hardware(hardware)  # a wrong name fails before the program is loaded
    job = Job(
        command="autoshard",
        target=target,
        args=args,
        args_from=args_from,
        meshes=() if mesh is None else (str(parse_mesh(mesh)),),
        devices=devices,
        hardware=hardware,
        autoshard=AutoshardOptions(
            memory=memory, budget=budget, seed=seed, prove=not no_proof, proof_limit=proof_limit
        ),
    )
    if time_limit is None:
        time_limit = _default_time_limit(budget, 0.0 if no_proof else proof_limit)
    result = run_job(job, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    if result.autosharding is not None:
        _write_answer(result.autosharding, json_file, html_file, rules_file)
        if result.autosharding.search.is_interrupted:
            raise click.exceptions.Exit(130)
    raise_failure(result)


def _default_time_limit(budget: float, proof_limit: float) -> float:
    """Return the time after which the command is stopped, if the person gave none.

    The two limits end a search and a proof only between two steps; the rest is for loading and
    lowering the program and for the step that goes beyond its limit.
    """
    return 120.0 + 1.25 * budget + 1.5 * proof_limit


def _write_answer(
    answer: Autosharding, json_file: str | None, html_file: str | None, rules_file: str | None
) -> None:
    from shardlab.autoshard.answer_text import answer_html, answer_rich, answer_text
    from shardlab.autoshard.paste_text import rules_file_text
    from shardlab.cli.outputs import html_page, show_report, to_json_text, write_outputs

    outputs = {
        "--json": (json_file, lambda: to_json_text(answer.to_json())),
        "--html": (html_file, lambda: html_page(answer.program, (answer_html(answer),))),
        "--rules": (rules_file, lambda: rules_file_text(answer)),
    }
    if not write_outputs(outputs):
        show_report(
            lambda width: answer_text(answer, width), lambda width: answer_rich(answer, width)
        )
