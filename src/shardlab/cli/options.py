"""Options that several commands share, with the same name, meaning and completion everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import click

from shardlab.cli.completion import (
    OPTIMIZERS,
    complete_folder,
    complete_hardware,
    complete_optimizer,
    complete_path,
    complete_problem,
)

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def add_options(*options: Option) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, listed in this order by --help."""

    def decorate(command: Command) -> Command:
        # Decorators apply from the bottom up, and click lists options in the opposite order.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(flag: str, name: str, description: str) -> Option:
    """Return an option that writes an output to a file, or to standard output with -."""
    return click.option(
        flag,
        name,
        metavar="FILE",
        shell_complete=complete_path,
        help=f"Write {description} to FILE, or - for standard output.",
    )


json_option = output_option("--json", "json_file", "the result as JSON")
html_option = output_option("--html", "html_file", "the report as an HTML page")

hardware_option = click.option(
    "--hardware",
    metavar="CHIP",
    shell_complete=complete_hardware,
    help="The chip, such as tpu-v5p or h100, or the TOML file of one.",
)
headroom_option = click.option(
    "--headroom",
    type=click.FloatRange(min=0, max=1, max_open=True),
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="Share of the memory to leave free.",
)
# What is stored elsewhere or in parts, for `plan` and `advise`
memory_options = add_options(
    click.option(
        "--offload",
        metavar="TENSORS",
        help="Tensors of a layer to save on the host, by MaxText's names: decoder_layer_input, or "
        "query_proj+out_proj.",
    ),
    click.option(
        "--offload-optimizer", is_flag=True, help="Optimizer states are stored on the host."
    ),
    click.option(
        "--loss-chunks", metavar="N", help="Chunks in which cross-entropy computes the logits."
    ),
)
# What the time of a step depends on besides mesh and workload
timing_options = add_options(
    click.option(
        "--precision",
        type=click.Choice(["bf16", "fp8", "int8"]),
        default="bf16",
        show_default=True,
        help="Dtype of products with weights, for the time of a step.",
    ),
    click.option(
        "--framework",
        metavar="NAME",
        help="Software whose efficiency is assumed: maxtext, megatron, megatron-2022, torchtitan, "
        "pytorch-eager or xla-gpu.  [default: maxtext on TPUs; on GPUs torchtitan for an fsdp "
        "axis, else megatron; of GPT models on A100 megatron-2022]",
    ),
    click.option(
        "--schedule",
        metavar="NAME",
        help="Pipeline schedule: 1f1b, interleaved:5 (5 groups of layers a stage), zero-bubble.  "
        "[default: interleaved; 1f1b with PyTorch]",
    ),
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Do not show progress.")


def optimizer_option(default: str) -> Option:
    return click.option(
        "--optimizer",
        default=default,
        show_default=True,
        metavar="NAME",
        shell_complete=complete_optimizer,
        help=f"{', '.join(OPTIMIZERS[:-1])}; none is inference.",
    )


memory_limit_option = click.option(
    "--memory-limit",
    metavar="BYTES",
    help="Memory that the program may allocate, such as 4GB.  [default: the machine's]",
)

# The limits under which a file of the user's is executed.
limit_options = add_options(
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="Stop the program after this time, with exit code 124.",
    ),
    memory_limit_option,
    quiet_option,
)

# The program of `trace` and `check`, its arguments, outputs and limits.
PROGRAM_ARGUMENTS_HELP = """
    \b
    The arguments of a function come from
      shapes              'f32[1024,4096]' 'bf16[8,128]', or with a spec 'f32[8,4]@data,None'
      --args NAME         a tuple in the same file, or a function that returns one
      the file itself     a tuple or function <function>_args, or example_args
    In a tuple, text such as "f32[8,4]" stands for an array of that shape.
"""
program_options = add_options(
    click.argument("program", shell_complete=complete_path),
    # Shapes of a function, or everything after -- for a script.
    click.argument("args", nargs=-1, type=click.UNPROCESSED),
    click.option(
        "--args",
        "args_from",
        metavar="NAME",
        help="Name of a tuple or function in the same file that gives the arguments.",
    ),
    click.option(
        "--devices",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of devices that the program sees while it is imported.  [default: enough for "
        "--mesh, or as many as the program requests, or 8]",
    ),
    json_option,
    html_option,
    limit_options,
)

# The catalogue and the problem of `practice`, `learn` and `catalogue`.
catalogue_option = click.option(
    "--catalogue",
    metavar="DIR",
    # Before the problem, whose completion depends on it.
    is_eager=True,
    shell_complete=complete_folder,
    help="A catalogue of your own instead of shardlab's.",
)
problem_argument = click.argument("problem", required=False, shell_complete=complete_problem)
level_option = click.option(
    "--level",
    type=click.Choice(["A", "B", "C"], case_sensitive=False),
    help="Isolation level of the sandbox.  [default: the highest that this machine supports]",
)


@overload
def parse_whole_number(name: str, text: str) -> int: ...
@overload
def parse_whole_number(name: str, text: None) -> None: ...
@overload
def parse_whole_number(name: str, text: str | None) -> int | None: ...
def parse_whole_number(name: str, text: str | None) -> int | None:
    """Return the value of an option, with or without separators between its digits.

    >>> parse_whole_number("devices", "4,096"), parse_whole_number("devices", "4_096")
    (4096, 4096)
    """
    if text is None:
        return None
    # 18 digits fit in 64 bits, and int() of a longer text may take seconds.
    digits = text.replace(",", "").replace("_", "").strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18 or not int(digits):
        raise click.UsageError(f"--{name} {text}: expected a whole number from 1, such as 1024.")
    return int(digits)
