"""`shardlab plan`: what each device holds of a whole model, and whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.plan_options import list_presets, plan_options

if TYPE_CHECKING:
    from shardlab.planner.plan import Plan

_HELP = """Show what each device holds of MODEL, what is replicated, and whether it fits.

    MODEL is a preset (--list shows them), a safetensors file, its index or folder, an Orbax
    checkpoint, a table in TOML or JSON, MaxText's named_shardings.json, or what makes an NNX model
    or a pytree in a file of yours, as model.py:Decoder. No weights are read, nothing is allocated.

    \b
    shardlab plan llama3-70b --mesh fsdp=64,tensor=8 --strategy fsdp+tensor \\
        --hardware tpu-v5p --optimizer adamw --batch 1024 --sequence 8192
    shardlab plan ./Llama-3.1-8B --mesh data=2,model=4 --rules rules.toml
    shardlab plan deepseek-v3 --mesh fsdp=-1,expert=32 --devices v5p-1024 --strategy fsdp+expert
    shardlab plan llama3-70b --mesh fsdp=512 --strategy fsdp --save plan.json
    shardlab plan llama3-70b --mesh fsdp=512 --strategy fsdp --compare plan.json

    \b
    Without --optimizer it is a plan for inference: parameters, and with --batch and --sequence the
    KV cache. With one it is a plan for training: gradients, the optimizer's arrays, activations.

    \b
    Exit codes
      0    planned; there may be warnings. Under --compare: nothing differs
      1    findings of severity error, such as: it does not fit. Under --compare: something differs
      2    the model, the rules or a choice cannot be used, or the command was not understood
      124  the time limit was reached, where a file of yours makes the model
      130  interrupted
    """


@click.command("plan", help=_HELP)
@click.argument("model", required=False, metavar="MODEL")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_presets,
    help="List the presets with their sizes, and end.",
)
@plan_options
def command(model: str | None, **options: Any) -> None:
    from shardlab.cli.plan_outputs import check_files, write

    if model is None:
        raise click.UsageError(
            "Missing argument 'MODEL': a preset, of which --list has all, a file or a folder.\n"
            "Such as: shardlab plan llama3-8b --mesh fsdp=8 --strategy fsdp"
        )
    try:
        check_files(options)
        before = _before(options["compare"])
        made = _made(model, options)
        same = write(made, before, options)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    ok = made.ok if same is None else same
    click.get_current_context().exit(0 if ok else 1)


def _before(path: str | None) -> Any:
    """Return the plan to compare with, before the work: a file that cannot be read ends it."""
    if path is None:
        return None
    from shardlab.planner.snapshots.golden_file import load_golden

    return load_golden(path)


def _made(model: str, options: dict[str, Any]) -> Plan:
    from shardlab.cli.plan_request import asked_for
    from shardlab.planner.make_plan import plan

    what, where, choices = asked_for(model, options)
    return plan(what, where, **choices)
