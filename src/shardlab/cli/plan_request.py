"""What the options of `shardlab plan` ask, as the arguments of `shardlab.plan`."""

from __future__ import annotations

from typing import Any

import click

from shardlab.cli.number_option import whole_number

# options that mean nothing without a batch and a sequence
_OF_A_WORKLOAD = (
    "remat",
    "microbatch",
    "cache_dtype",
    "activation_dtype",
    "no_flash",
    "no_sequence_parallel",
)


def asked_for(model: str, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model, the mesh and the choices; what cannot be read is told with its option."""
    from shardlab.cli.model_target import load_named

    loaded = load_named(model, options)
    choices = {
        "rules": _rules(options),
        "strategy": _strategy(options),
        **_devices(options),
        "optimizer": options["optimizer"],
        "policy": _policy(options),
        "stack": options["stack"],
        "architecture": options["architecture"],
        "workload": _workload(options),
        "headroom": _headroom(options["headroom"]),
        "limits": options["replicated_above"],
    }
    return loaded, _mesh(options, loaded), choices


def _mesh(options: dict[str, Any], model: Any) -> Any:
    mesh = options["mesh"] or model.details.get("mesh")
    if mesh is None and options["devices"] is not None:
        mesh = options["devices"]  # a slice alone stands for one axis, and a number is refused
    if mesh is None:
        raise click.UsageError(
            "Missing option '--mesh': the mesh axes with their sizes, or a slice (v5p-1024).\n"
            "Such as: shardlab plan llama3-8b --mesh fsdp=4,tensor=2 --strategy fsdp+tensor"
        )
    return mesh


def _devices(options: dict[str, Any]) -> dict[str, Any]:
    """Return the chip and the number of devices; a slice such as v5p-1024 may stand for both."""
    hardware, devices = options["hardware"], options["devices"]
    if devices is None:
        return {"hardware": hardware}
    if devices.replace(",", "").replace("_", "").isdecimal():
        return {"hardware": hardware, "n_devices": whole_number("devices", devices)}
    from shardlab.planner.tpu_slices import parse_tpu_slice

    named = parse_tpu_slice(devices)
    if hardware is None:
        return {"hardware": devices}
    return {"hardware": hardware, "n_devices": named.n_devices}


def _headroom(share: float) -> float:
    if not 0 <= share < 1:  # NaN passes click's own check
        raise click.UsageError(f"--headroom {share}: a share of the memory, from 0 up to 1.")
    return share


def _strategy(options: dict[str, Any]) -> str | None:
    """Return the strategy with the ZeRO stage in it; beside rules, only a stage makes sense."""
    strategy, zero = options["strategy"], options["zero"]
    if not zero:
        return None if strategy is None else str(strategy)
    return f"zero{zero}" if strategy is None else f"{strategy}+zero{zero}"


def _rules(options: dict[str, Any]) -> Any:
    """Return single rules first, then those of a file."""
    from shardlab.planner.rules.rules import parse_rules
    from shardlab.planner.snapshots.golden_file import load_specs

    parts: list[Any] = [(*_rule(text),) for text in options["single_rules"]]
    single = parse_rules({"rules": parts}) if parts else None
    if options["rules_from"] is None:
        return single
    path = options["rules_from"]
    file = load_specs(path) if path.endswith(".json") else parse_rules(path)
    return file if single is None else parse_rules([single, file])


def _rule(text: str) -> tuple[str, str]:
    pattern, equals, spec = text.rpartition("=")
    if not equals or not pattern:
        raise click.UsageError(f"--rule {text}: PATTERN=SPEC, such as 'mlp.*weight=fsdp,tensor'.")
    return pattern, spec


def _policy(options: dict[str, Any]) -> Any:
    from shardlab.planner.memory.dtype_policy import parse_dtype_policy

    return parse_dtype_policy(
        options["policy"],
        parameters=options["param_dtype"],
        gradients=options["grad_dtype"],
        moments=options["moment_dtype"],
        master=options["master_dtype"],
    )


def _workload(options: dict[str, Any]) -> Any:
    from shardlab.planner.memory.workload import Workload

    batch, sequence = options["batch"], options["sequence"]
    if batch is None and sequence is None:
        if any(options[name] for name in _OF_A_WORKLOAD):
            raise click.UsageError("--remat and its like need --batch and --sequence.")
        return None
    if batch is None or sequence is None:
        raise click.UsageError("--batch and --sequence belong together: give both.")
    given = {
        "remat": options["remat"],
        "microbatch": whole_number("microbatch", options["microbatch"]),
        "dtype": options["activation_dtype"],
        "cache_dtype": options["cache_dtype"],
        "flash": False if options["no_flash"] else None,
        "sequence_parallel": False if options["no_sequence_parallel"] else None,
    }
    return Workload(
        batch=whole_number("batch", batch),
        sequence=whole_number("sequence", sequence),
        **{name: value for name, value in given.items() if value is not None},
    )
