"""`--config`: a configuration of another framework as options; options of the command override."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardlab.cli.completion import complete_path
from shardlab.cli.options import parse_whole_number

if TYPE_CHECKING:
    from shardlab.planner.configs.run_config import ConfigOptions, RunConfig
    from shardlab.planner.model import Model
    from shardlab.render.sheet import Section

config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE|NAME",
    shell_complete=complete_path,
    help="Training configuration: MaxText's YAML, a Megatron script, torchtitan's TOML, a "
    "config.json, a Keras LayoutMap, or the name of a NeMo recipe. Options override it.",
)
# Field of a configuration -> option of the command
_PLAN_OPTIONS = {
    "mesh_text": "mesh",
    "strategy": "strategy",
    "hardware": "hardware",
    "batch": "batch",
    "sequence": "sequence",
    "microbatch": "microbatch",
    "remat": "remat",
    "offload": "offload",
    "offload_optimizer": "offload_optimizer",
    "loss_chunks": "loss_chunks",
    "activation_dtype": "activation_dtype",
    "optimizer": "optimizer",
    "policy": "policy",
    "precision": "precision",
    "framework": "framework",
    "schedule": "schedule",
}
# `advise` tries strategies, remat policies and microbatches itself.
_ADVISE_OPTIONS = {
    "mesh_text": "mesh",
    "n_devices": "devices",
    **{
        name: name
        for name in (
            *("hardware", "batch", "sequence", "optimizer", "policy", "precision"),
            *("framework", "schedule", "offload", "offload_optimizer", "loss_chunks"),
        )
    },
}


@dataclass(frozen=True, kw_only=True)
class AppliedConfig:
    """A configuration and the options that were given in place of its values."""

    run: RunConfig
    overridden: tuple[str, ...]
    problems: tuple[str, ...] = ()

    def section(self) -> Section:
        """Return what was read, for the terminal."""
        from shardlab.planner.configs.config_text import config_section

        return config_section(self.run, self.overridden, self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return what was read as plain data."""
        return {
            **self.run.to_json(),
            "overridden": list(self.overridden),
            "problems": list(self.problems),
        }

    def model_argument(self) -> Model | str | None:
        """Return the model: a preset by its name, any other with the option that reads it again."""
        from shardlab.planner.models.presets import find_preset

        model = self.run.model
        if model is None or find_preset(model.name) == model:
            return None if model is None else model.name
        source = self.run.source.partition(": ")[0]
        return replace(model, details={**model.details, "called": f"--config={source}"})


def apply_plan_config(model: str | None, options: dict[str, Any]) -> AppliedConfig | None:
    """Fill the options of `plan` that were not given from --config; None without one."""
    applied = _apply_config(model, options, _PLAN_OPTIONS)
    if applied is None:
        return None
    run = applied.run
    has_rules = bool(options["rules_file"] or options["single_rules"] or run.rules)
    if has_rules and not _is_given("strategy"):
        options["strategy"] = None  # rules give the specs
    options["config_rules"] = run.rules
    if not _is_given("no_flash"):
        options["no_flash"] = not run.flash
    if not _is_given("no_sequence_parallel"):
        options["no_sequence_parallel"] = not run.sequence_parallel
    if options["batch"] is None or options["sequence"] is None:
        options.update(no_flash=False, no_sequence_parallel=False)  # they need a workload
    return applied


def check_config(applied: AppliedConfig, model: Model) -> AppliedConfig:
    """Return the configuration with what a plan cannot follow, and unmatched layouts of Keras."""
    from shardlab.planner.configs.keras_layouts import check_layouts

    problems: list[str] = []
    if applied.run.rules is not None:
        problems += check_layouts(applied.run.rules, model)
    return replace(applied, problems=tuple(problems))


def apply_advise_config(model: str | None, options: dict[str, Any]) -> AppliedConfig | None:
    """Fill the options of `advise` that were not given from --config; None without one."""
    return _apply_config(model, options, _ADVISE_OPTIONS)


def _apply_config(
    model: str | None, options: dict[str, Any], names: dict[str, str]
) -> AppliedConfig | None:
    if options["config_file"] is None:
        return None
    from shardlab.planner.configs.load_config import load_run_config

    run = load_run_config(options["config_file"], _config_options(model, options))
    # A layout map has no model, so MODEL replaces nothing there.
    overridden = ["MODEL"] if model is not None and run.rules is None else []
    for field, option in names.items():
        value = getattr(run, field)
        if value is None:
            continue
        if _is_given(option):
            overridden.append(f"--{option.replace('_', '-')}")
        else:
            options[option] = str(value)
    batch, microbatch = (_digits(options.get(name)) for name in ("batch", "microbatch"))
    if batch and microbatch and batch % microbatch and not _is_given("microbatch"):
        options["microbatch"] = None  # it belongs to another batch or number of devices
    return AppliedConfig(run=run, overridden=tuple(overridden))


def _digits(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else 0


def _config_options(model: str | None, options: dict[str, Any]) -> ConfigOptions:
    """Return what the options say about devices: a number, a slice, or a mesh."""
    from shardlab.planner.configs.run_config import ConfigOptions
    from shardlab.planner.plan_mesh import parse_plan_mesh
    from shardlab.planner.tpu_slices import is_tpu_slice, parse_tpu_slice

    devices, hardware, mesh = options["devices"], options["hardware"], options["mesh"]
    n_devices = None
    for text in (hardware, devices):
        if is_tpu_slice(text):
            tpu_slice = parse_tpu_slice(text)
            n_devices, hardware = tpu_slice.n_devices, tpu_slice.hardware
    if devices is not None and not is_tpu_slice(devices):
        n_devices = parse_whole_number("devices", devices)
    return ConfigOptions(
        n_devices=n_devices,
        mesh=None if mesh is None else parse_plan_mesh(mesh, n_devices, hardware).mesh,
        hardware=hardware,
        precision=options["precision"] if _is_given("precision") else None,
        has_model=model is not None,
    )


def _is_given(option: str) -> bool:
    """Return whether the user gave an option, rather than its default."""
    source = click.get_current_context().get_parameter_source(option)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
