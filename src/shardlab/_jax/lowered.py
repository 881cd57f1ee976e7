"""What JAX gives the compiler for a lowered jit: module, options, devices, meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jaxlib
import numpy as np
from jax._src.interpreters import mlir, pxla  # compile options and bytecode as JAX makes them
from jax._src.lib.mlir import ir  # reads a module that Shardy's shardings were added to
from jax.sharding import NamedSharding

from shardlab._jax.sharding_inspection import remove_inspections


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilerInput:
    """A lowered program in the serialised form in which JAX passes it to XLA."""

    module: bytes
    options: bytes
    device_ids: tuple[int, ...]  # by partition
    meshes: tuple[Any, ...]  # of its shardings, without duplicates


def compiler_input(lowered: Any, platform: str = "cpu") -> CompilerInput:
    """Return the compiler's input for a `jax.stages.Lowered` that was lowered for `platform`."""
    return computation_input(lowered._lowering, platform)


def computation_input(computation: Any, platform: str = "cpu") -> CompilerInput:
    """Return the compiler's input for the computation inside a `jax.stages.Lowered`.

    This follows `UnloadedMeshExecutable.from_hlo` of JAX up to the call of the compiler.
    """
    compile_args = computation.compile_args
    devices = computation._device_list
    n_devices = len(devices) if devices is not None else compile_args["num_devices"]
    ids = tuple(d.id for d in devices) if devices is not None else tuple(range(n_devices))
    module = remove_inspections(computation.stablehlo())
    shape_poly = compile_args["shape_poly_state"]
    if shape_poly is not None and shape_poly.uses_dim_vars:
        module = mlir.refine_polymorphic_shapes(module)
    shardings = [
        [
            pxla.maybe_concretize_mesh(s, devices) if devices is not None else s
            for s in compile_args[key]
        ]
        for key in ("in_shardings", "out_shardings")
    ]
    ins, outs = pxla.get_prop_to_input_output(*shardings, len(compile_args["ordered_effects"]))
    options = pxla.create_compile_options(
        module,
        compile_args["tuple_args"],
        ins,
        outs,
        None,
        np.zeros(n_devices, int),  # one device for all partitions: see compile_worker.py
        _options_for(platform, dict(computation._compiler_options_kvs)),
    )
    if platform == "cpu":
        _skip_code_generation(options)
    return CompilerInput(
        module=mlir.module_to_bytecode(module),
        options=options.SerializeAsString(),
        device_ids=ids,
        meshes=tuple(dict.fromkeys(_sharding_meshes(compile_args))),
    )


def module_input(module: bytes, n_devices: int, free_results: Sequence[bool]) -> CompilerInput:
    """Return the compiler's input for a module whose arguments all have a sharding.

    `free_results` says for each result whether the compiler may choose its sharding.
    """
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        n_arguments = len(ir.FunctionType(_main_function(parsed).type).inputs)
        options = pxla.create_compile_options(
            parsed,
            False,
            [False] * n_arguments,
            list(free_results),
            None,
            np.zeros(n_devices, int),  # one device for all partitions: see compile_worker.py
            {},
        )
    _skip_code_generation(options)
    return CompilerInput(
        module=module,
        options=options.SerializeAsString(),
        device_ids=tuple(range(n_devices)),
        meshes=(),
    )


def _main_function(module: Any) -> Any:
    return next(op for op in module.body.operations if str(getattr(op, "name", "")) == '"main"')


def _skip_code_generation(options: Any) -> None:
    """Skip LLVM's optimizations.

    The HLO and the buffer assignment that we read are the same without them, and the machine code
    never runs.
    """
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    options.executable_build_options.debug_options.xla_llvm_disable_expensive_passes = True


def _options_for(platform: str, options: dict[str, Any]) -> dict[str, Any]:
    """Drop options that only the compiler of another platform accepts."""
    prefixes = tuple(f"xla_{name}_" for name in ("tpu", "gpu", "cpu") if name != platform)
    return {key: value for key, value in options.items() if not key.startswith(prefixes)}


def _sharding_meshes(compile_args: Any) -> Iterator[Any]:
    for key in ("in_shardings", "out_shardings", "intermediate_shardings"):
        for sharding in compile_args.get(key) or ():
            if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
                yield sharding.mesh


def jaxlib_version() -> str:
    """Return the version of jaxlib, which contains the compiler."""
    return str(jaxlib.__version__)
