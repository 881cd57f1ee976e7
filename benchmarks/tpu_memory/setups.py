"""The setups whose train steps are compiled, and which of them the model may be fitted to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardlab.planner.model import Architecture

MODELS = {
    "llama3-8b": Architecture(
        layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256
    ),
    "llama3-70b": Architecture(
        layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256
    ),
    "llama2-7b": Architecture(
        layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32000
    ),
    "qwen3-1.7b": Architecture(
        layers=28, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=6144, vocab=151936
    ),
}


@dataclass(frozen=True, kw_only=True)
class MemorySetup:
    """One train step: model, mesh on a TPU topology, workload, dtypes and remat policy."""

    model: str
    layers: int
    topology: str
    mesh: tuple[tuple[str, int], ...]
    batch: int
    sequence: int
    # none, dots, full; save: and offload: with MaxText's names of tensors, joined by +
    remat: str = "full"
    weight_dtype: str = "float32"  # bfloat16 has a master copy in float32
    accumulation: int = 1  # microbatches, one after the other
    loss_chunks: int = 1
    sequence_parallel: bool = True

    @property
    def id(self) -> str:
        """A name that says everything."""
        mesh = "-".join(f"{name}{size}" for name, size in self.mesh)
        parts = [f"{self.model}x{self.layers}", self.topology.replace(":", "-"), mesh]
        parts += [f"b{self.batch}s{self.sequence}", self.remat]
        parts += ["bf16"] if self.weight_dtype == "bfloat16" else []
        parts += [f"acc{self.accumulation}"] if self.accumulation > 1 else []
        parts += [f"chunks{self.loss_chunks}"] if self.loss_chunks > 1 else []
        parts += [] if self.sequence_parallel else ["nosp"]
        return "/".join(parts)

    @property
    def split(self) -> str:
        """The split, by a hash of the setup: decided before any error is known."""
        digest = hashlib.sha256(self.id.encode()).digest()
        return "test" if digest[0] % 2 else "fit"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mesh": dict(self.mesh)}


def setup_from_json(data: dict[str, Any]) -> MemorySetup:
    return MemorySetup(**{**data, "mesh": tuple(data["mesh"].items())})


def all_setups() -> list[MemorySetup]:
    """Return every setup once, those with most different options first."""
    families = (_v5p_setups, _v5e_setups, _v6e_setups, _large_meshes, _layer_counts)
    return list(dict.fromkeys(setup for family in families for setup in family()))


def _setup(model: str, topology: str, mesh: str, batch: int, sequence: int, **more: Any) -> Any:
    axes = tuple((name, int(size)) for name, size in (a.split("=") for a in mesh.split(",")))
    layers = more.pop("layers", MODELS[model].layers)
    return MemorySetup(
        model=model,
        layers=layers,
        topology=topology,
        mesh=axes,
        batch=batch,
        sequence=sequence,
        **more,
    )


def _v5p_setups() -> Iterator[MemorySetup]:
    small = _setup("llama3-8b", "v5p:2x2x2", "fsdp=8", 16, 4096)
    yield small
    yield replace(small, batch=8, remat="none")  # more would not fit without recomputation by XLA
    for remat in ("dots", "save:query_proj+key_proj+value_proj", "save:context+out_proj"):
        yield replace(small, remat=remat)
    yield replace(small, remat="offload:decoder_layer_input")
    yield replace(small, batch=32, sequence=8192)
    yield replace(small, weight_dtype="bfloat16")
    yield replace(small, accumulation=2)
    yield replace(small, loss_chunks=8)
    yield replace(small, batch=32, loss_chunks=8, remat="save:mlpwo+context")
    for mesh in ("fsdp=4,tensor=2", "fsdp=2,tensor=4", "data=2,fsdp=4", "fsdp=2,context=4"):
        axes = tuple((name, int(size)) for name, size in (a.split("=") for a in mesh.split(",")))
        yield replace(small, mesh=axes)
        yield replace(small, mesh=axes, remat="dots", weight_dtype="bfloat16")
    large = _setup("llama3-70b", "v5p:4x4x4", "fsdp=64", 64, 4096)
    yield large
    yield replace(large, batch=128, remat="save:query_proj+value_proj+key_proj+out_proj")
    yield replace(large, mesh=(("fsdp", 16), ("tensor", 4)), remat="dots")
    yield replace(large, mesh=(("fsdp", 16), ("tensor", 4)), sequence_parallel=False)
    yield replace(large, mesh=(("fsdp", 16), ("context", 4)), batch=16, sequence=16384)
    yield replace(large, batch=256, accumulation=4, weight_dtype="bfloat16")


def _v5e_setups() -> Iterator[MemorySetup]:
    small = _setup("qwen3-1.7b", "v5e:4x4", "fsdp=16", 32, 4096)
    yield small
    for remat in ("dots", "save:query_proj+key_proj+value_proj+out_proj", "save:mlpwi_0+mlpwi_1"):
        yield replace(small, remat=remat, batch=16)
    yield replace(small, remat="none", batch=16, sequence=2048)
    yield replace(small, loss_chunks=8)
    yield replace(small, mesh=(("fsdp", 8), ("tensor", 2)))
    yield replace(small, mesh=(("data", 4), ("fsdp", 4)), weight_dtype="bfloat16")
    yield replace(small, mesh=(("data", 4), ("tensor", 4)), batch=16)
    llama = _setup("llama3-8b", "v5e:4x8", "fsdp=32", 32, 4096)
    yield llama
    yield replace(llama, mesh=(("fsdp", 8), ("tensor", 4)))
    yield replace(llama, mesh=(("fsdp", 8), ("tensor", 4)), remat="dots", batch=8)
    yield _setup("llama2-7b", "v5e:4x8", "fsdp=16,tensor=2", 64, 2048)


def _v6e_setups() -> Iterator[MemorySetup]:
    llama2 = _setup("llama2-7b", "v6e:4x4", "fsdp=16", 32, 4096)
    yield llama2
    yield replace(llama2, remat="dots")
    yield replace(llama2, remat="save:query_proj+key_proj+value_proj+context", loss_chunks=4)
    yield replace(llama2, mesh=(("fsdp", 4), ("tensor", 4)), remat="none", batch=4)
    yield replace(llama2, mesh=(("fsdp", 8), ("context", 2)), sequence=8192, batch=16)
    yield replace(llama2, mesh=(("data", 2), ("fsdp", 8)), accumulation=2, batch=64)
    llama3 = _setup("llama3-8b", "v6e:4x4", "fsdp=16", 32, 8192)
    yield llama3
    yield replace(llama3, batch=64, loss_chunks=16)
    yield replace(llama3, mesh=(("fsdp", 8), ("tensor", 2)), batch=8, remat="dots")
    yield replace(llama3, mesh=(("fsdp", 8), ("tensor", 2)), weight_dtype="bfloat16")
    yield replace(llama3, remat="offload:query_proj+key_proj+value_proj", batch=16)
    yield _setup("llama3-70b", "v6e:8x8", "fsdp=64", 64, 4096, remat="full")
    yield _setup("llama3-70b", "v6e:8x8", "fsdp=16,tensor=4", 32, 4096, remat="full")


def _large_meshes() -> Iterator[MemorySetup]:
    """Yield more devices, and steps whose peak is not at the loss."""
    yield _setup("llama2-7b", "v5e:4x8", "fsdp=32", 64, 2048)
    yield _setup("llama2-7b", "v5e:4x8", "fsdp=32", 32, 4096, weight_dtype="bfloat16")
    yield _setup("qwen3-1.7b", "v5e:8x8", "fsdp=64", 128, 4096, loss_chunks=4)
    yield _setup("qwen3-1.7b", "v5e:8x8", "fsdp=64", 64, 4096, remat="dots")
    llama = _setup("llama3-8b", "v5p:4x4x4", "fsdp=64", 128, 8192)
    yield llama
    yield replace(llama, remat="dots", batch=64)
    yield replace(llama, mesh=(("fsdp", 32), ("tensor", 2)), weight_dtype="bfloat16")
    yield replace(llama, mesh=(("data", 4), ("fsdp", 16)), remat="save:context+out_proj")
    yield replace(llama, mesh=(("fsdp", 16), ("context", 4)), batch=16, sequence=65536)
    yield replace(llama, batch=256, accumulation=2, weight_dtype="bfloat16")
    large = _setup("llama3-70b", "v6e:16x16", "fsdp=256", 256, 4096)
    yield large
    yield replace(large, mesh=(("fsdp", 64), ("tensor", 4)), batch=128, loss_chunks=4)
    yield replace(large, mesh=(("fsdp", 32), ("tensor", 8)), weight_dtype="bfloat16")
    yield replace(large, mesh=(("data", 2), ("fsdp", 128)), sequence=8192)
    yield _setup("llama3-70b", "v5p:4x4x8", "fsdp=128", 256, 8192)
    yield _setup("llama3-70b", "v5p:4x4x8", "fsdp=32,tensor=4", 64, 8192, remat="dots")
    yield _setup("llama3-70b", "v5p:4x4x8", "data=2,fsdp=64", 128, 8192, loss_chunks=8)


def _layer_counts() -> Iterator[MemorySetup]:
    """Yield the same step with other numbers of layers: memory is linear in them."""
    for layers in (8, 16, 24):
        yield _setup("llama3-8b", "v5p:2x2x2", "fsdp=8", 16, 4096, layers=layers)
        yield _setup("llama3-8b", "v5p:2x2x2", "fsdp=8", 16, 4096, layers=layers, remat="dots")
