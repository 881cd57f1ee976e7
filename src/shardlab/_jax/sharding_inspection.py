"""`jax.debug.inspect_array_sharding` inside a jit.

JAX lowers it to a custom call whose text is the address of a Python callback, which XLA's
partitioner calls. Here Shardy's propagation decides the sharding, and the callback is called with
it; a module for a process of its own must not contain the call at all.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from jax._src.lib import xla_client  # how JAX writes a callback into the module
from jax._src.lib.mlir import ir

_TARGET = "InspectSharding"


def inspection_calls(operation: Any) -> Iterator[Any]:
    """Yield the custom calls of `inspect_array_sharding` in a module, at any depth."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield from inspection_calls(op.operation)
                if op.operation.name == "stablehlo.custom_call" and _target(op) == _TARGET:
                    yield op.operation


def remove_inspections(module: Any) -> Any:
    """Return the module without these calls; the same object if it has none."""
    if not any(True for _ in inspection_calls(module.operation)):
        return module
    with module.context:
        operation = module.operation.clone()
        for call in list(inspection_calls(operation)):
            call.erase()
        bytecode = io.BytesIO()
        operation.operation.write_bytecode(file=bytecode)
        return ir.Module.parse(bytecode.getvalue())


def inspection_callbacks(keepalive: Any) -> dict[bytes, Any]:
    """Return the callbacks of a lowered program by the text that stands for each in the module."""
    callbacks = [c for c in keepalive or () if getattr(c, "__name__", "").endswith(_CALLBACK_NAME)]
    return {xla_client.encode_inspect_sharding_callback(c): c for c in callbacks}


# The function in `jax._src.debugging` that takes the sharding from the compiler.
_CALLBACK_NAME = "_hlo_sharding_callback"


def call_key(call: Any) -> bytes:
    """Return the text of a call that stands for its callback."""
    return bytes(ir.StringAttr(call.attributes["backend_config"]).value_bytes)


def _target(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)
