"""A jit that JAX has lowered -> what the compiler is given: module, options, devices, meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jaxlib
import numpy as np
from jax._src.interpreters import mlir, pxla
from jax._src.named_sharding import NamedSharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilerInput:
    """A lowered program in the form in which JAX hands it to XLA, serialised."""

    module: bytes
    options: bytes
    device_ids: tuple[int, ...]  # by partition
    meshes: tuple[Any, ...]  # of its shardings, each once


def compiler_input(lowered: Any, platform: str = "cpu") -> CompilerInput:
    """Return what XLA would be given for a `jax.stages.Lowered`, lowered for `platform`."""
    computation = lowered._lowering
    found = computation.compile_args
    devices = computation._device_list
    n_devices = len(devices) if devices is not None else found["num_devices"]
    ids = tuple(d.id for d in devices) if devices is not None else tuple(range(n_devices))
    module = computation.stablehlo()
    if found["shape_poly_state"] is not None and found["shape_poly_state"].uses_dim_vars:
        module = mlir.refine_polymorphic_shapes(module)
    shardings = [
        [pxla.maybe_concretize_mesh(s, devices) if devices is not None else s for s in found[key]]
        for key in ("in_shardings", "out_shardings")
    ]
    ins, outs = pxla.get_prop_to_input_output(*shardings, len(found["ordered_effects"]))
    options = pxla.create_compile_options(
        module,
        found["tuple_args"],
        ins,
        outs,
        None,
        np.zeros(n_devices, int),  # one device for all: see compile_worker.py
        _meant_for(platform, dict(computation._compiler_options_kvs)),
    )
    if platform == "cpu":
        # Only machine code suffers, and nobody runs it; the HLO and the memory are the same.
        options.executable_build_options.debug_options.xla_backend_optimization_level = 0
        options.executable_build_options.debug_options.xla_llvm_disable_expensive_passes = True
    return CompilerInput(
        module=mlir.module_to_bytecode(module),
        options=options.SerializeAsString(),
        device_ids=ids,
        meshes=tuple(dict.fromkeys(_meshes(found))),
    )


def _meant_for(platform: str, options: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only the compiler of another platform would understand."""
    others = tuple(f"xla_{name}_" for name in ("tpu", "gpu", "cpu") if name != platform)
    return {key: value for key, value in options.items() if not key.startswith(others)}


def _meshes(found: Any) -> Iterator[Any]:
    for key in ("in_shardings", "out_shardings", "intermediate_shardings"):
        for sharding in found.get(key) or ():
            if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
                yield sharding.mesh


def jaxlib_version() -> str:
    """Return the version of jaxlib, which holds the compiler."""
    return str(jaxlib.__version__)
