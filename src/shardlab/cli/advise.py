"""`shardlab advise`: meshes and strategies for a model and a number of devices, ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import complete_model, complete_remat
from shardlab.cli.config_arguments import config_option
from shardlab.cli.options import (
    hardware_option,
    headroom_option,
    html_option,
    json_option,
    limit_options,
    memory_options,
    optimizer_option,
    parse_whole_number,
    timing_options,
)

if TYPE_CHECKING:
    from shardlab.planner.advice.advice import Advice
    from shardlab.planner.model import Model

_HELP = """Rank the meshes and strategies with which MODEL fits on a number of devices.

    Every factorization of the devices into data, fsdp, expert and tensor axes is tried, with every
    remat policy and ZeRO stage; also pipeline stages and context parallelism where they help.
    Those that fit are ranked by the estimated time of a step; the others are listed with the
    reason. MODEL is the same as for `shardlab plan`: a preset, a file, a folder, or the function or
    class of a Python file, such as model.py:Decoder.

    \b
    shardlab advise llama3-70b --hardware tpu-v5p --devices 512 --batch 1024 --sequence 8192
    shardlab advise deepseek-v3-main --devices v5p-4096 --batch 4096 --sequence 4096
    shardlab advise llama3-70b --hardware h100 --devices 16 --batch 64 --sequence 8192 \\
        --optimizer none
    shardlab advise --config llama3_70b

    \b
    Exit codes
      0    something fits
      1    nothing fits
      2    the model or an option cannot be used, or the command is invalid
      124  the time limit was reached, if a Python file creates the model
      130  interrupted
    """


@click.command("advise", help=_HELP, short_help="Rank meshes and strategies by step time.")
@click.argument("model", required=False, metavar="MODEL", shell_complete=complete_model)
@config_option
@hardware_option
@click.option(
    "--devices",
    "-n",
    metavar="N|SLICE",
    help="Number of devices: 512, or a TPU slice such as v5p-1024.",
)
@click.option(
    "--architecture",
    metavar="FILE|NAME",
    shell_complete=complete_model,
    help="Architecture (layers, heads, width), if MODEL has none; as in plan.",
)
@click.option("--batch", metavar="N", help="Sequences per step, over all devices.")
@click.option("--sequence", metavar="N", help="Tokens per sequence.")
@click.option(
    "--microbatch", metavar="N", help="Sequences computed at once.  [default: as many as fit]"
)
@optimizer_option("adamw")
@click.option(
    "--policy", metavar="NAME", help="Dtypes: as-is, mixed, bf16-all, int8, or bf16,master=none."
)
@click.option("--cache-dtype", metavar="DTYPE", help="Dtype of the KV cache.")
@click.option(
    "--remat",
    multiple=True,
    metavar="POLICY",
    shell_complete=complete_remat,
    help="Try only this policy; may be repeated.",
)
@click.option(
    "--context/--no-context",
    default=None,
    help="Also shard the sequence.  [default: if it is long, or if nothing fits otherwise]",
)
@click.option(
    "--pipeline/--no-pipeline",
    default=None,
    help="Also try pipeline stages.  [default: on GPUs of several nodes]",
)
@timing_options
@click.option("--mesh", metavar="AXES", help="Also show this mesh, and why it is not the best.")
@headroom_option
@memory_options
@click.option(
    "--activation-margin",
    type=float,
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Reserve this multiple of the estimated activations.",
)
@click.option(
    "--compute-efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    metavar="SHARE",
    help="Share of the peak FLOP/s that is reached.  [default: calibrated]",
)
@click.option(
    "--network-efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    metavar="SHARE",
    help="Share of the network's peak bandwidth that is reached.  [default: calibrated]",
)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override a hardware figure, such as node_egress=2e11; may be repeated.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Meshes to list."
)
@click.option(
    "--formulas",
    "with_formulas",
    is_flag=True,
    help="Also print all formulas and hardware figures; the files have them always.",
)
@json_option
@html_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for a design document.")
@limit_options
def command(model: str | None, **options: Any) -> None:
    from shardlab.cli.config_arguments import apply_advise_config
    from shardlab.cli.outputs import check_destinations

    check_destinations(json=options["json_file"], html=options["html_file"])
    config = options["config"] = apply_advise_config(model, options)
    model_source = config.model_argument() if config is not None and model is None else model
    if model_source is None:
        raise click.UsageError("Missing argument 'MODEL': a preset, a file or a folder.")
    if options["devices"] is None:
        raise click.UsageError("Missing option '--devices' / '-n'.")
    advice = _with_slice_note(_compute_advice(model_source, options))
    if config is not None and config.run.mesh is not None and "--mesh" not in config.overridden:
        advice = replace(advice, requested_source=options["config_file"])
    _write_advice(advice, options)
    click.get_current_context().exit(0 if advice.ranked else 1)


def _compute_advice(model: str | Model, options: dict[str, Any]) -> Advice:
    from shardlab.cli.jobs import is_model_target, load_model_argument
    from shardlab.planner.advice.make_advice import advise

    hardware, n_devices = _parse_hardware(options)
    # `advise` loads presets and files itself, and keeps their name for the suggested command.
    if isinstance(model, str) and is_model_target(model):
        model = load_model_argument(model, options)
    return advise(
        model,
        hardware,
        n_devices,
        batch=parse_whole_number("batch", options["batch"]),
        sequence=parse_whole_number("sequence", options["sequence"]),
        microbatch=parse_whole_number("microbatch", options["microbatch"]),
        offload=options["offload"] or "",
        offload_optimizer=options["offload_optimizer"],
        loss_chunks=parse_whole_number("loss_chunks", options["loss_chunks"]) or 1,
        optimizer=options["optimizer"],
        policy=options["policy"],
        remat=options["remat"] or None,
        context=options["context"],
        pipeline=options["pipeline"],
        schedule=options["schedule"] or "interleaved",
        framework=options["framework"],
        precision=options["precision"],
        mesh=options["mesh"],
        headroom=options["headroom"],
        activation_margin=options["activation_margin"],
        cache_dtype=options["cache_dtype"],
        compute_efficiency=options["compute_efficiency"],
        network_efficiency=options["network_efficiency"],
        figures=dict(map(_parse_figure, options["figures"])),
        architecture=options["architecture"],
    )


def _with_slice_note(advice: Advice) -> Advice:
    """Return the advice with a note if TPUs are not sold in this number."""
    from shardlab.planner.tpu_slices import missing_slice_note

    note = missing_slice_note(advice.hardware, advice.n_chips)
    return advice if note is None else replace(advice, notes=(*advice.notes, note))


def _parse_hardware(options: dict[str, Any]) -> tuple[str, int]:
    """Return the hardware and the number of devices; the name of a TPU slice gives both."""
    from shardlab.planner.tpu_slices import is_tpu_slice, parse_tpu_slice

    devices, hardware = options["devices"].strip(), options["hardware"]
    if not is_tpu_slice(devices):
        if hardware is None and devices[:1].isalpha():
            parse_tpu_slice(devices)  # raises: no such TPU
        if hardware is None:
            raise click.UsageError("Missing option '--hardware', such as --hardware tpu-v5p.")
        return hardware, parse_whole_number("devices", devices)
    tpu_slice = parse_tpu_slice(devices)
    # A TOML file may describe the chips of the slice under a name of its own.
    if hardware is not None and not hardware.endswith(".toml"):
        from shardlab.hardware.chips import parse_hardware

        if parse_hardware(hardware).name != tpu_slice.hardware:
            raise click.UsageError(
                f"--devices {devices} is a slice of {tpu_slice.hardware}, and --hardware is "
                f"{hardware}."
            )
    return hardware or tpu_slice.hardware, tpu_slice.n_chips


def _parse_figure(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise click.UsageError(
            f"--figure {text}: expected NAME=VALUE, such as node_egress=2e11."
        ) from None


def _write_advice(advice: Advice, options: dict[str, Any]) -> None:
    from shardlab.cli.outputs import (
        html_page,
        print_result,
        show_lines,
        show_section,
        to_json_text,
        write_outputs,
    )
    from shardlab.planner.advice.advice_text import advice_html, advice_lines, advice_markdown

    top = options["top"]
    title = f"{advice.model} on {advice.n_devices} {advice.hardware}"
    outputs = {
        "--json": (options["json_file"], lambda: to_json_text(_advice_json(advice, options))),
        "--html": (options["html_file"], lambda: html_page(title, [advice_html(advice, top=top)])),
    }
    if write_outputs(outputs):
        return
    if options["markdown"]:
        print_result(advice_markdown(advice, top=top), newline=False)
        return
    with_formulas = options["with_formulas"]
    show_lines(lambda width: advice_lines(advice, width, top=top, with_formulas=with_formulas))
    if options["config"] is not None:
        show_section(options["config"].section())


def _advice_json(advice: Advice, options: dict[str, Any]) -> dict[str, Any]:
    config = options["config"]
    return {**advice.to_json(), **({} if config is None else {"config": config.to_json()})}
