"""`shardlab plan`: what each device stores of a model, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import (
    STRATEGIES,
    complete_mesh,
    complete_model,
    complete_path,
    complete_remat,
    complete_strategy,
)
from shardlab.cli.config_arguments import config_option
from shardlab.cli.options import (
    add_options,
    hardware_option,
    headroom_option,
    html_option,
    json_option,
    limit_options,
    memory_options,
    optimizer_option,
    output_option,
    timing_options,
)

if TYPE_CHECKING:
    from shardlab.cli.outputs import Outputs
    from shardlab.hardware.step_time import StepTime
    from shardlab.planner.model import Model
    from shardlab.planner.plan import Plan
    from shardlab.planner.snapshots.golden_file import GoldenFile
    from shardlab.planner.snapshots.plan_comparison import Comparison

_HELP = """Show what each device stores of MODEL, what is replicated, and whether it fits.

    MODEL is a preset (--list shows them), a safetensors file, its index or folder, an Orbax
    checkpoint, a table in TOML or JSON, MaxText's named_shardings.json, or the function or class of
    a Python file that creates an NNX model or a pytree, such as model.py:Decoder. No weights are
    read, and nothing is allocated. With --config, what another framework's configuration says is
    used for every option that is not given, and for MODEL.

    \b
    shardlab plan llama3-70b --mesh fsdp=64,tensor=8 --strategy fsdp+tensor \\
        --hardware tpu-v5p --optimizer adamw --batch 1024 --sequence 8192
    shardlab plan ./Llama-3.1-8B --mesh data=2,model=4 --rules rules.toml
    shardlab plan deepseek-v3 --mesh fsdp=-1,expert=32 --devices v5p-1024 --strategy fsdp+expert
    shardlab plan llama3-70b --mesh fsdp=512 --strategy fsdp --save plan.json
    shardlab plan llama3-70b --mesh fsdp=512 --strategy fsdp --compare plan.json
    shardlab plan --config llama3_70b --time

    \b
    Without --optimizer it is a plan for inference: parameters, and with --batch and --sequence the
    KV cache. With one it is a plan for training: gradients, optimizer states, activations.

    \b
    Exit codes
      0    planned; there may be warnings. With --compare: the plans are the same
      1    findings of severity error, such as: it does not fit. With --compare: the plans differ
      2    the model, the rules or an option cannot be used, or the command is invalid
      124  the time limit was reached, if a Python file creates the model
      130  interrupted
    """


def _list_presets(ctx: click.Context, parameter: click.Parameter, is_requested: bool) -> None:
    """Print the presets and exit."""
    if not is_requested or ctx.resilient_parsing:
        return
    from shardlab.cli.outputs import show_lines
    from shardlab.planner.models.presets import load_preset, preset_names
    from shardlab.planner.presets_text import presets_sheet
    from shardlab.render.sheet import sheet_lines

    sheet = presets_sheet(_preset_row(load_preset(name)) for name in preset_names())
    show_lines(lambda width: sheet_lines(sheet, width))
    ctx.exit()


def _preset_row(model: Model) -> tuple[str, int, int, int, str]:
    architecture, description = model.architecture, ""
    if architecture is not None:
        cache = f"{architecture.kv_heads} KV heads"
        if architecture.kv_lora_rank:
            cache = f"latent {architecture.kv_lora_rank}"
        description = f"{architecture.layers} layers, hidden {architecture.hidden:,}, {cache}"
        description += f", {architecture.experts} experts" if architecture.experts else ""
    return model.name, model.n_parameters, model.n_bytes, model.n_tensors, description


_model_options = add_options(
    click.argument("model", required=False, metavar="MODEL", shell_complete=complete_model),
    click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_list_presets,
        help="List the presets with their sizes, and exit.",
    ),
    click.option(
        "--mesh",
        metavar="AXES",
        shell_complete=complete_mesh,
        help="Mesh axes, such as fsdp=64,tensor=8; one size may be -1. Also MaxText's ici_*/dcn_*.",
    ),
    click.option(
        "--devices",
        "-n",
        metavar="N|SLICE",
        help="Number of devices, for a size of -1: 512, or a TPU slice such as v5p-1024.",
    ),
    click.option(
        "--strategy",
        metavar="NAME",
        shell_complete=complete_strategy,
        help=f"{', '.join(STRATEGIES)}, or several with +, such as fsdp+tensor.",
    ),
    click.option(
        "--rules",
        "rules_file",
        metavar="FILE",
        shell_complete=complete_path,
        help="Specs by rules in a TOML file, or in the form of MaxText's named_shardings.json.",
    ),
    click.option(
        "--rule",
        "single_rules",
        multiple=True,
        metavar="PATTERN=SPEC",
        help="A rule, before those of a file; may be repeated, the first match applies.",
    ),
    config_option,
    hardware_option,
    headroom_option,
    optimizer_option("none"),
    click.option(
        "--policy", metavar="NAME", help="Dtypes of training: as-is, mixed, bf16-all, or bf16,..."
    ),
    click.option("--param-dtype", metavar="DTYPE", help="Dtype of parameters."),
    click.option("--grad-dtype", metavar="DTYPE", help="Dtype of gradients."),
    click.option("--moment-dtype", metavar="DTYPE", help="Dtype of the optimizer's moments."),
    click.option("--master-dtype", metavar="DTYPE", help="Dtype of the master weights, or none."),
    click.option(
        "--zero",
        type=click.IntRange(0, 3),
        metavar="STAGE",
        help="ZeRO stage: shard optimizer states (1), gradients (2), parameters (3) over data.",
    ),
    click.option(
        "--stack",
        metavar="WHAT",
        help="Stack experts, layers or all into one array each, as JAX programs do.",
    ),
    click.option(
        "--architecture",
        metavar="FILE|NAME",
        shell_complete=complete_model,
        help="Architecture (layers, heads, width) for activations and caches, if MODEL has none: "
        "a TOML file, a config.json, or a preset.",
    ),
    click.option("--batch", metavar="N", help="Sequences per step, over all devices."),
    click.option("--sequence", metavar="N", help="Tokens per sequence."),
    click.option("--microbatch", metavar="N", help="Sequences of the batch computed at once."),
    click.option(
        "--remat",
        metavar="POLICY",
        shell_complete=complete_remat,
        help="What is saved for the backward pass: none, selective, dots, full, a number of "
        "arrays per layer, or names such as query_proj+out_proj.",
    ),
    memory_options,
    click.option("--activation-dtype", metavar="DTYPE", help="Dtype of activations."),
    click.option("--no-flash", is_flag=True, help="Attention scores are written to memory."),
    click.option(
        "--no-sequence-parallel",
        is_flag=True,
        help="Activations between the blocks are replicated over tensor axes.",
    ),
    click.option("--cache-dtype", metavar="DTYPE", help="Dtype of the KV cache."),
    click.option("--time", "is_timed", is_flag=True, help="Also estimate the time of a step."),
    timing_options,
    click.option(
        "--replicated-above",
        metavar="BYTES",
        help="Report replicated tensors of at least this size, such as 64MB.",
    ),
)
_output_options = add_options(
    output_option("--save", "save", "a golden file for --compare"),
    click.option(
        "--compare",
        metavar="FILE",
        shell_complete=complete_path,
        help="Show the differences from a golden file, or from MaxText's named_shardings.json.",
    ),
    json_option,
    html_option,
    output_option("--svg", "svg_file", "a picture of the memory of a device"),
    output_option("--treemap", "treemap_file", "a treemap of the bytes of a device"),
    output_option("--rules-to", "rules_to", "the rules, for --rules,"),
    click.option("--markdown", is_flag=True, help="Print Markdown, for a design document."),
    click.option("--show-rules", is_flag=True, help="Also print the rules."),
    click.option("--all", "show_all", is_flag=True, help="List every tensor, however small."),
)


@click.command("plan", help=_HELP, short_help="Show whether a model fits, tensor by tensor.")
@_model_options
@_output_options
@limit_options
def command(model: str | None, **options: Any) -> None:
    from shardlab.cli.config_arguments import apply_plan_config, check_config
    from shardlab.cli.outputs import check_destinations
    from shardlab.cli.plan_arguments import parse_plan_arguments
    from shardlab.planner.make_plan import plan
    from shardlab.planner.models.architecture import with_architecture
    from shardlab.planner.snapshots.golden_file import load_golden

    config = apply_plan_config(model, options)
    model_source = config.run.model if config is not None and model is None else model
    if model_source is None:
        raise click.UsageError(
            "Missing argument 'MODEL': a preset (--list shows all), a file or a folder.\n"
            "Such as: shardlab plan llama3-8b --mesh fsdp=8 --strategy fsdp"
        )
    check_destinations(**{name: options[parameter] for name, parameter in _FILES.items()})
    # Loaded before the work, so that a file that cannot be read ends the command at once.
    golden = None if options["compare"] is None else load_golden(options["compare"])
    loaded_model, mesh, arguments = parse_plan_arguments(model_source, options)
    if options["is_timed"]:
        loaded_model = with_architecture(loaded_model, options["architecture"])
        _apply_timing_defaults(loaded_model, mesh, arguments, options)
    result = plan(loaded_model, mesh, **arguments)
    if config is not None:
        config = check_config(config, loaded_model)
        result = replace(result, notes=(*result.notes, *config.run.notes))
        options["config"] = config
    if options["is_timed"]:
        options["steps"] = _estimate_times(loaded_model, result, arguments, options)
    comparison = None if golden is None else golden.compare(result)
    _write_plan(result, golden, comparison, options)
    # With --compare the question is whether the plan changed, not whether it fits.
    is_ok = result.ok if comparison is None else comparison.same
    click.get_current_context().exit(0 if is_ok else 1)


_STEP_TITLES = {
    "step": "Time of a step",
    "prefill": "Prefill, the time to the first token",
    "token": "Decoding, the time of one token",
}
# Option -> parameter of the command, for the checks before the work and the writing after it.
_FILES = {
    "json": "json_file",
    "html": "html_file",
    "svg": "svg_file",
    "treemap": "treemap_file",
    "save": "save",
    "rules-to": "rules_to",
}


def _apply_timing_defaults(
    model: Model, mesh: str, arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    """Fill strategy, remat, microbatch and schedule where nothing is said, for memory too."""
    from shardlab.hardware.chips import parse_hardware
    from shardlab.planner.configs.run_config import strategy_of_mesh
    from shardlab.planner.make_plan import memory_budget
    from shardlab.planner.memory.optimizer import parse_optimizer
    from shardlab.planner.plan_mesh import parse_plan_mesh
    from shardlab.planner.timing.estimate_step import step_estimator
    from shardlab.planner.timing.timing_defaults import (
        assumed_framework,
        shards_whole_experts,
        with_timing_defaults,
    )

    plan_mesh = parse_plan_mesh(mesh, arguments.get("n_devices"), arguments["hardware"])
    if plan_mesh.hardware is None:
        return  # the estimate reports that the chip is missing
    parsed_mesh = plan_mesh.mesh
    is_training = parse_optimizer(arguments["optimizer"]).is_training
    framework = assumed_framework(options["framework"], plan_mesh.hardware, parsed_mesh, model)
    if arguments["strategy"] is None and arguments["rules"] is None:
        zero_stage = framework.zero if is_training else 0
        chip = parse_hardware(plan_mesh.hardware)
        is_wide = shards_whole_experts(chip, parsed_mesh, model.architecture)
        arguments["strategy"] = strategy_of_mesh(parsed_mesh, zero_stage, has_wide_experts=is_wide)
    if arguments["workload"] is None or not is_training or arguments["strategy"] is None:
        return
    chosen = {name: arguments[name] for name in ("strategy", "optimizer", "policy")}
    estimator, work = step_estimator(
        model,
        parsed_mesh,
        hardware=plan_mesh.hardware,
        framework=options["framework"],
        **chosen,
    )
    arguments["workload"] = with_timing_defaults(
        arguments["workload"],
        estimator,
        work,
        is_remat_given=options["remat"] is not None,
        is_schedule_given=options["schedule"] is not None,
        usable_bytes=memory_budget(
            parse_hardware(plan_mesh.hardware), arguments["headroom"]
        ).usable_bytes,
    )
    options["schedule"] = arguments["workload"].schedule


def _estimate_times(
    model: Any, plan: Plan, arguments: dict[str, Any], options: dict[str, Any]
) -> list[StepTime]:
    """Return the time of a step on the plan's mesh; of inference that of prefill and of a token."""
    from shardlab.planner.timing.estimate_step import estimate_prefill, estimate_step
    from shardlab.planner.tpu_slices import is_tpu_slice, parse_tpu_slice

    missing = [name for name in ("strategy", "hardware", "workload") if not arguments.get(name)]
    if missing:
        flags = {"workload": "--batch and --sequence"}
        raise click.UsageError(f"--time also needs {flags.get(missing[0], '--' + missing[0])}.")
    hardware = arguments["hardware"]
    chosen = {
        # A slice such as v5p-1024 names its chip.
        "hardware": parse_tpu_slice(hardware).hardware if is_tpu_slice(hardware) else hardware,
        "workload": arguments["workload"],
        "strategy": arguments["strategy"],
        "optimizer": arguments["optimizer"],
        "policy": arguments["policy"],
        "schedule": options["schedule"] or "interleaved",
        "precision": options["precision"],
        "framework": options["framework"],
    }
    cache_bytes = plan.bytes_of("kv_cache")
    steps = [estimate_step(model, plan.mesh_text, cache_bytes=cache_bytes, **chosen)]
    if steps[0].unit == "token":
        steps.insert(0, estimate_prefill(model, plan.mesh_text, **chosen))
    return steps


def _write_plan(
    plan: Plan, golden: GoldenFile | None, comparison: Comparison | None, options: dict[str, Any]
) -> None:
    """Write every output that was requested, and print the plan or the comparison."""
    from shardlab.cli.outputs import write_outputs

    old_plan = None if golden is None else golden.plan
    if write_outputs(_plan_outputs(plan, old_plan, comparison, options)):
        return
    if comparison is not None:
        _show_comparison(comparison, options["markdown"])
    else:
        _show_plan(plan, options)


def _plan_outputs(
    plan: Plan, old_plan: Plan | None, comparison: Comparison | None, options: dict[str, Any]
) -> Outputs:
    from shardlab.cli.outputs import html_page, to_json_text

    def render_page() -> str:
        return html_page(f"{plan.model} on {plan.mesh_summary}", page_bodies())

    def page_bodies() -> Iterator[str]:
        from shardlab.planner.plan_text import plan_html
        from shardlab.planner.snapshots.plan_comparison_text import comparison_html

        if comparison is not None:
            yield comparison_html(comparison)
        yield plan_html(plan, show_all=options["show_all"], old=old_plan)

    def render_json() -> str:
        changes = {} if comparison is None else {"comparison": comparison.to_json()}
        for step in options.get("steps", ()):
            changes["prefill" if step.unit == "prefill" else "step"] = step.to_json()
        if "config" in options:
            changes["config"] = options["config"].to_json()
        return to_json_text({**plan.to_json(), **changes})

    def render_bars() -> str:
        from shardlab.planner.memory_bars import bars_svg

        return bars_svg(plan, old_plan)

    def render_golden() -> str:
        from shardlab.planner.snapshots.saved_plan import canonical_text

        return canonical_text(plan)

    def render_rules() -> str:
        from shardlab.planner.rules.rules_file import rules_text
        from shardlab.planner.snapshots.golden_file import rules_of_plan

        return rules_text(rules_of_plan(plan))

    renderers = {
        "json": render_json,
        "html": render_page,
        "svg": render_bars,
        "treemap": plan.treemap,
        "save": render_golden,
        "rules-to": render_rules,
    }
    return {f"--{name}": (options[_FILES[name]], renderers[name]) for name in _FILES}


def _show_plan(plan: Plan, options: dict[str, Any]) -> None:
    from shardlab.cli.outputs import show_report, show_section
    from shardlab.planner.plan_text import plan_markdown, plan_rich, plan_text
    from shardlab.planner.timing.step_text import step_section

    choices = {"show_all": options["show_all"], "show_rules": options["show_rules"]}
    if options["markdown"]:
        _show_markdown(plan_markdown(plan, **choices))
        return
    show_report(
        lambda width: plan_text(plan, width, **choices),
        lambda width: plan_rich(plan, width, **choices),
    )
    if "config" in options:
        show_section(options["config"].section())
    for step in options.get("steps", ()):
        show_section(step_section(step, _STEP_TITLES[step.unit]))


def _show_comparison(comparison: Comparison, as_markdown: bool) -> None:
    from shardlab.cli.outputs import show_report
    from shardlab.planner.snapshots.plan_comparison_text import (
        comparison_markdown,
        comparison_rich,
        comparison_text,
    )

    if as_markdown:
        _show_markdown(comparison_markdown(comparison))
        return
    show_report(
        lambda width: comparison_text(comparison, width),
        lambda width: comparison_rich(comparison, width),
    )


def _show_markdown(text: str) -> None:
    """Print Markdown verbatim: rich would wrap the rows of tables."""
    from shardlab.cli.outputs import show_report

    def render_rich(width: int) -> Any:
        from rich.text import Text

        return Text(text.rstrip("\n"), no_wrap=True, overflow="ignore")

    show_report(lambda width: text.rstrip("\n"), render_rich)
