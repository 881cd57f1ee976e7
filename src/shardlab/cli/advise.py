"""`shardlab advise`: the meshes and strategies for a model and a number of chips, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.number_option import whole_number
from shardlab.cli.worker_options import limit_options

if TYPE_CHECKING:
    from shardlab.planner.advice.advice import Advice

_HELP = """Rank the meshes and strategies that MODEL fits with on a number of chips.

    All factorisations of the chips into data, fsdp, expert and tensor axes are tried, with every
    remat policy and ZeRO stage. What fits is ranked by the estimated time of a step; what loses is
    listed with the reason. MODEL is what `shardlab plan` takes: a preset, a file, a folder,
    or what makes an NNX model in a file of yours, as model.py:Decoder.

    \b
    shardlab advise llama3-70b --hardware tpu-v5p --chips 512 --batch 1024 --sequence 8192
    shardlab advise deepseek-v3-main --chips v5p-4096 --batch 4096 --sequence 4096
    shardlab advise llama3-70b --hardware h100 --chips 16 --batch 64 --sequence 8192 \\
        --optimizer none

    \b
    Exit codes
      0    something fits
      1    nothing fits
      2    the model or a choice cannot be used, or the command was not understood
      130  interrupted
    """


@click.command("advise", help=_HELP)
@click.argument("model")
@click.option(
    "--hardware", metavar="CHIP", help="tpu-v5p, h100, ..., or the path of a chip's TOML file."
)
@click.option(
    "--chips", required=True, metavar="N|NAME", help="How many: 512, or a topology as v5p-1024."
)
@click.option(
    "--architecture", metavar="FILE|NAME", help="Measures, where MODEL has none; as in plan."
)
@click.option("--batch", metavar="N", help="Sequences in a step, over all devices.")
@click.option("--sequence", metavar="N", help="Tokens in each sequence.")
@click.option("--microbatch", metavar="N", help="Sequences computed at once; else as many as fit.")
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    metavar="NAME",
    help="adam, adamw, adafactor, sgd, lion, muon; none is inference.",
)
@click.option(
    "--policy", metavar="NAME", help="Dtypes: as-is, mixed, bf16-all, int8, or bf16,master=none."
)
@click.option("--cache-dtype", metavar="DTYPE", help="Hold keys and values in this type.")
@click.option("--remat", multiple=True, metavar="POLICY", help="Only this policy; may be repeated.")
@click.option(
    "--context/--no-context",
    default=None,
    help="Try to cut the sequence too; else only where nothing fits without.",
)
@click.option(
    "--headroom",
    type=click.FloatRange(min=0, max=1, max_open=True),
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="The share of the memory that is to stay free.",
)
@click.option(
    "--activation-margin",
    type=float,
    metavar="TIMES",
    help="Make room for so many times the estimated activations; else as was measured.",
)
@click.option(
    "--compute-efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    metavar="SHARE",
    help="The share of the peak FLOP/s that is reached.",
)
@click.option(
    "--network-efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    metavar="SHARE",
    help="The share of the network's peak that is reached.",
)
@click.option(
    "--figure", "figures", multiple=True, metavar="NAME=VALUE", help="Such as node_egress=2e11."
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Meshes to list."
)
@click.option(
    "--json",
    metavar="FILE",
    help="Write plain data to FILE; - writes it to the terminal, and nothing else.",
)
@click.option("--html", metavar="FILE", help="Write the tables as a page.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a design document.")
@limit_options
def command(model: str, **options: Any) -> None:
    from shardlab.cli.outputs import check_places

    check_places(json=options["json"], html=options["html"])
    try:
        made = _made(model, options)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    _write(made, options)
    click.get_current_context().exit(0 if made.ranked else 1)


def _made(model: str, options: dict[str, Any]) -> Advice:
    from shardlab.cli.model_target import is_target, load_named
    from shardlab.planner.advice.make_advice import advise

    hardware, chips = _place(options)
    return advise(
        load_named(model, options) if is_target(model) else model,
        hardware,
        chips,
        batch=whole_number("batch", options["batch"]),
        sequence=whole_number("sequence", options["sequence"]),
        microbatch=whole_number("microbatch", options["microbatch"]),
        optimizer=options["optimizer"],
        policy=options["policy"],
        remat=options["remat"] or None,
        context=options["context"],
        headroom=options["headroom"],
        activation_margin=options["activation_margin"],
        cache_dtype=options["cache_dtype"],
        compute_efficiency=options["compute_efficiency"],
        network_efficiency=options["network_efficiency"],
        figures=dict(map(_figure, options["figures"])),
        architecture=options["architecture"],
    )


def _place(options: dict[str, Any]) -> tuple[str, Any]:
    """Return the hardware and the number of chips, which a topology's name gives at once."""
    from shardlab.planner.tpu_slices import is_tpu_slice, parse_tpu_slice

    chips, hardware = options["chips"].strip(), options["hardware"]
    if is_tpu_slice(chips):
        found = parse_tpu_slice(chips)
        if hardware is not None and not hardware.endswith(".toml"):
            from shardlab.hardware.chips import parse_hardware

            if parse_hardware(hardware).name != found.hardware:
                raise click.UsageError(
                    f"--chips {chips} is a slice of {found.hardware}, and --hardware is {hardware}."
                )
        return hardware or found.hardware, found.n_devices
    if hardware is None:
        raise click.UsageError("Missing option '--hardware', such as --hardware tpu-v5p.")
    return hardware, whole_number("chips", chips)


def _figure(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise click.UsageError(f"--figure {text}: NAME=VALUE, such as node_egress=2e11.") from None


def _write(advice: Advice, options: dict[str, Any]) -> None:
    from shardlab.cli.outputs import echo, json_text, page, show_lines, write_all
    from shardlab.planner.advice.advice_text import advice_html, advice_lines, advice_markdown

    top = options["top"]
    title = f"{advice.model} on {advice.n_devices} {advice.hardware}"
    outputs = {
        "--json": (options["json"], lambda: json_text(advice.to_json())),
        "--html": (options["html"], lambda: page(title, [advice_html(advice, top=top)])),
    }
    if write_all(outputs):
        return
    if options["markdown"]:
        echo(advice_markdown(advice, top=top), nl=False)
        return
    show_lines(lambda width: advice_lines(advice, width, top=top))
