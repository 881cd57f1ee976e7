"""The options of `shardlab plan` as the arguments of `shardlab.plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.options import parse_whole_number

if TYPE_CHECKING:
    from shardlab.planner.memory.dtype_policy import DtypePolicy
    from shardlab.planner.memory.workload import Workload
    from shardlab.planner.model import Model
    from shardlab.planner.rules.rules import Rules

# Options that have no meaning without a batch and a sequence.
_WORKLOAD_OPTIONS = (
    "remat",
    "microbatch",
    "cache_dtype",
    "activation_dtype",
    "no_flash",
    "no_sequence_parallel",
    "offload",
    "offload_optimizer",
    "loss_chunks",
)


def parse_plan_arguments(
    source: str | Model, options: dict[str, Any]
) -> tuple[Model, str, dict[str, Any]]:
    """Return the model, the mesh and the keyword arguments of `shardlab.plan`."""
    from shardlab.cli.jobs import load_model_argument

    model = load_model_argument(source, options) if isinstance(source, str) else source
    arguments = {
        "rules": _parse_rules(options),
        "strategy": _combine_strategy(options),
        **_parse_devices(options),
        "optimizer": options["optimizer"],
        "policy": _parse_policy(options),
        "stack": options["stack"],
        "architecture": options["architecture"],
        "workload": _parse_workload(options),
        "headroom": _check_headroom(options["headroom"]),
        "limits": options["replicated_above"],
        "framework": options["framework"],
    }
    return model, _find_mesh(options, model), arguments


def _find_mesh(options: dict[str, Any], model: Model) -> str:
    mesh = options["mesh"] or model.details.get("mesh")
    if mesh is None and options["devices"] is not None:
        # A TPU slice alone is a mesh of one axis; a number is rejected by the planner.
        mesh = options["devices"]
    if mesh is None:
        raise click.UsageError(
            "Missing option '--mesh': the mesh axes with their sizes, or a slice (v5p-1024).\n"
            "Such as: shardlab plan llama3-8b --mesh fsdp=4,tensor=2 --strategy fsdp+tensor"
        )
    return str(mesh)


def _parse_devices(options: dict[str, Any]) -> dict[str, Any]:
    """Return the chip and the number of devices; a slice such as v5p-1024 names both."""
    hardware, devices = options["hardware"], options["devices"]
    if devices is None:
        return {"hardware": hardware}
    # A number or a slice: both are natural after --devices.
    if devices.replace(",", "").replace("_", "").isdecimal():
        return {"hardware": hardware, "n_devices": parse_whole_number("devices", devices)}
    from shardlab.planner.tpu_slices import parse_tpu_slice

    tpu_slice = parse_tpu_slice(devices)
    if hardware is None:
        return {"hardware": devices}
    return {"hardware": hardware, "n_devices": tpu_slice.n_devices}


def _check_headroom(share: float) -> float:
    if not 0 <= share < 1:  # NaN passes click's own check
        raise click.UsageError(f"--headroom {share}: expected a share of the memory, from 0 to 1.")
    return share


def _combine_strategy(options: dict[str, Any]) -> str | None:
    """Return the strategy including the ZeRO stage; with rules, only a stage makes sense."""
    strategy, zero = options["strategy"], options["zero"]
    if not zero:
        return None if strategy is None else str(strategy)
    return f"zero{zero}" if strategy is None else f"{strategy}+zero{zero}"


def _parse_rules(options: dict[str, Any]) -> Rules | None:
    """Return the rules of --rule, followed by those of the --rules file or of --config."""
    from shardlab.planner.rules.rules import parse_rules
    from shardlab.planner.snapshots.golden_file import load_specs

    pairs = [_split_rule(text) for text in options["single_rules"]]
    single_rules = parse_rules({"rules": pairs}) if pairs else None
    path, config_rules = options["rules_file"], options.get("config_rules")
    if path is None and config_rules is None:
        return single_rules
    if path is None:
        file_rules = parse_rules(config_rules)
    else:
        file_rules = load_specs(path) if path.endswith(".json") else parse_rules(path)
    return file_rules if single_rules is None else parse_rules([single_rules, file_rules])


def _split_rule(text: str) -> tuple[str, str]:
    pattern, equals, spec = text.rpartition("=")
    if not equals or not pattern:
        raise click.UsageError(
            f"--rule {text}: expected PATTERN=SPEC, such as 'mlp.*weight=fsdp,tensor'."
        )
    return pattern, spec


def _parse_policy(options: dict[str, Any]) -> DtypePolicy:
    from shardlab.planner.memory.dtype_policy import parse_dtype_policy

    return parse_dtype_policy(
        options["policy"],
        parameters=options["param_dtype"],
        gradients=options["grad_dtype"],
        moments=options["moment_dtype"],
        master=options["master_dtype"],
    )


def _parse_workload(options: dict[str, Any]) -> Workload | None:
    from shardlab.planner.memory.workload import Workload

    # Each by itself first: a wrong number is a mistake of its own.
    batch = parse_whole_number("batch", options["batch"])
    sequence = parse_whole_number("sequence", options["sequence"])
    if batch is None and sequence is None:
        if any(options[name] for name in _WORKLOAD_OPTIONS):
            raise click.UsageError("--remat and similar options need --batch and --sequence.")
        return None
    if batch is None or sequence is None:
        raise click.UsageError("--batch and --sequence belong together: give both.")
    choices = {
        "remat": options["remat"],
        "microbatch": parse_whole_number("microbatch", options["microbatch"]),
        "dtype": options["activation_dtype"],
        "cache_dtype": options["cache_dtype"],
        "offload": options["offload"],
        "offload_optimizer": options["offload_optimizer"] or None,
        "loss_chunks": parse_whole_number("loss_chunks", options["loss_chunks"]),
        "flash": False if options["no_flash"] else None,
        "sequence_parallel": False if options["no_sequence_parallel"] else None,
        "schedule": options["schedule"] or "interleaved",
    }
    return Workload(
        batch=batch,
        sequence=sequence,
        # Without an option, Workload's own default applies.
        **{name: value for name, value in choices.items() if value is not None},
    )
