"""The options of `shardlab plan`: what is asked, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardlab.cli.worker_options import LIMIT_OPTIONS

if TYPE_CHECKING:
    from shardlab.planner.model import Model

Command = TypeVar("Command", bound=Callable[..., Any])

_QUESTION: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--mesh",
        metavar="AXES",
        help="Mesh axes, such as fsdp=64,tensor=8; one size may be -1. Also MaxText's ici_*/dcn_*.",
    ),
    click.option(
        "--devices", "-n", metavar="N|NAME", help="How many devices -1 is for: 512, or v5p-1024."
    ),
    click.option(
        "--strategy",
        metavar="NAME",
        help="fsdp, tensor, fsdp+tensor, expert, pipeline, zero1, zero2, zero3, data-parallel, or "
        "several with +.",
    ),
    click.option(
        "--rules",
        "rules_from",
        metavar="FILE",
        help="Specs by rules in a TOML file, or as MaxText's named_shardings.json has them.",
    ),
    click.option(
        "--rule",
        "single_rules",
        multiple=True,
        metavar="PATTERN=SPEC",
        help="A rule, before those of a file; may be repeated, the first that is found counts.",
    ),
    click.option("--hardware", metavar="CHIP", help="tpu-v5p, h100, ..., or a chip's TOML file."),
    click.option(
        "--headroom",
        type=click.FloatRange(min=0, max=1, max_open=True),
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="The share of the memory that is to stay free.",
    ),
    click.option(
        "--optimizer",
        default="none",
        show_default=True,
        metavar="NAME",
        help="adam, adamw, adafactor, sgd, lion, muon; none plans for inference.",
    ),
    click.option(
        "--policy", metavar="NAME", help="Dtypes of training: as-is, mixed, bf16-all, or bf16,..."
    ),
    click.option("--param-dtype", metavar="DTYPE", help="Hold parameters in this type."),
    click.option("--grad-dtype", metavar="DTYPE", help="Hold gradients in this type."),
    click.option("--moment-dtype", metavar="DTYPE", help="Hold the optimizer's moments in this."),
    click.option("--master-dtype", metavar="DTYPE", help="Keep a master copy in this; or none."),
    click.option(
        "--zero",
        type=click.IntRange(0, 3),
        metavar="STAGE",
        help="ZeRO stage: 1 cuts optimizer arrays over the data axis, 2 gradients, 3 parameters.",
    ),
    click.option(
        "--stack",
        metavar="WHAT",
        help="Hold experts, layers or all in one array each, as JAX programs do.",
    ),
    click.option(
        "--architecture",
        metavar="FILE|NAME",
        help="Measures for activations and caches, where MODEL has none: a TOML file, a "
        "config.json, or a preset's.",
    ),
    click.option("--batch", metavar="N", help="Sequences in a step, over all devices."),
    click.option("--sequence", metavar="N", help="Tokens in each sequence."),
    click.option("--microbatch", metavar="N", help="Sequences computed at once, of the batch."),
    click.option(
        "--remat",
        metavar="POLICY",
        help="What is kept for the backward pass: none, selective, dots, full, or a number of "
        "arrays for each layer.",
    ),
    click.option("--activation-dtype", metavar="DTYPE", help="Compute activations in this type."),
    click.option("--no-flash", is_flag=True, help="Attention scores are written to memory."),
    click.option(
        "--no-sequence-parallel",
        is_flag=True,
        help="Tensor axes leave whole what stands between the blocks.",
    ),
    click.option("--cache-dtype", metavar="DTYPE", help="Hold keys and values in this type."),
    click.option(
        "--replicated-above",
        metavar="BYTES",
        help="Report tensors of at least this that are replicated, such as 64MiB.",
    ),
)
_ANSWER: tuple[Callable[[Any], Any], ...] = (
    click.option("--save", metavar="FILE", help="Write a golden file for --compare."),
    click.option(
        "--compare",
        metavar="FILE",
        help="Show what differs from a golden file, or from MaxText's named_shardings.json.",
    ),
    click.option(
        "--json",
        metavar="FILE",
        help="Write plain data to FILE; - writes it to the terminal, and nothing else.",
    ),
    click.option("--html", metavar="FILE", help="Write a page with tables and pictures."),
    click.option("--svg", metavar="FILE", help="Draw what a device holds against its memory."),
    click.option("--treemap", metavar="FILE", help="Draw what takes the bytes of a device."),
    click.option("--markdown", is_flag=True, help="Print Markdown, for a design document."),
    click.option("--rules-to", metavar="FILE", help="Write the rules, for --rules."),
    click.option("--show-rules", is_flag=True, help="Also print the rules."),
    click.option("--all", "show_all", is_flag=True, help="List every tensor, however small."),
)


def plan_options(command: Command) -> Command:
    """Give a command the question and the answer."""
    for option in reversed((*_QUESTION, *_ANSWER, *LIMIT_OPTIONS)):
        command = option(command)
    return command


def list_presets(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the presets and end."""
    if not asked or ctx.resilient_parsing:
        return
    from shardlab.cli.outputs import show_lines
    from shardlab.planner.presets_text import presets_sheet
    from shardlab.render.sheet import sheet_lines

    sheet = presets_sheet(map(_measures, _presets()))
    show_lines(lambda width: sheet_lines(sheet, width))
    ctx.exit()


def _presets() -> list[Model]:
    from shardlab.planner.models.presets import load_preset, preset_names

    return [load_preset(name) for name in preset_names()]


def _measures(model: Model) -> tuple[str, int, int, int, str]:
    arch, words = model.architecture, ""
    if arch is not None:
        cache = f"latent {arch.kv_lora_rank}" if arch.kv_lora_rank else f"{arch.kv_heads} KV heads"
        words = f"{arch.layers} layers, hidden {arch.hidden:,}, {cache}"
        words += f", {arch.experts} experts" if arch.experts else ""
    return model.name, model.n_parameters, model.n_bytes, model.n_tensors, words
