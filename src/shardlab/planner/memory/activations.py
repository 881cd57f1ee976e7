"""Activation memory: what a training step saves on one device for its backward pass.

>>> from shardlab.planner.memory.workload_shards import workload_shards
>>> from shardlab.planner.models.load import load_model
>>> from shardlab.sharding.mesh import parse_mesh
>>> one_device = parse_mesh("data=1")
>>> work = Workload(batch=1000, sequence=4000, remat="4")  # the scaling book: 4 arrays per layer
>>> llama = load_model("llama3-70b").architecture
>>> saved_item(llama, workload_shards(one_device), work).bytes_per_device
20971520000000

A transformer layer is counted tensor by tensor: each tensor that its backward pass reads, once.

>>> gpt3 = Architecture(layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128,
...                     ffn=4 * 12288, vocab=51200, gated=False)
>>> without_flash = Workload(batch=1, sequence=2048, flash=False, dropout=True)
>>> sum(tensor.bits for tensor in layer_tensors(gpt3, without_flash)) // 8 / 12288  # 34 + 5as/h
114.0

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) count 34 + 5as/h bytes per token and hidden
element for a GPT layer with dropout in 16 bits. The same count here takes any architecture, so
their formula is a special case.

What else a step needs while it computes (logits, recomputed layers, gathered weights) is counted
by `step_memory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards
from shardlab.planner.model import Architecture
from shardlab.planner.plan import MemoryItem

_MASK_BITS = 8  # JAX stores a dropout mask as one byte per element
_F32_BITS = 32  # routers and the loss are computed in f32, whatever the dtype of the model


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One tensor of a layer: bits per token, and how it is sharded.

    `sharding` is "tensor" inside the attention and feed-forward blocks; "sequence" between them,
    where only sequence parallelism shards over tensor axes; or "replicated".
    """

    name: str
    bits: int
    sharding: Literal["tensor", "sequence", "replicated"]
    is_attention_score: bool = False
    is_matmul_output: bool = False  # of a product with weights: what remat "dots" saves
    n_units: int | None = None  # indivisible units: heads, columns of the feed-forward block

    def n_shards(self, n_devices: int) -> int:
        """Return the shard count over n devices; with more devices than units they are replicas.

        If neither number divides the other the tensor is replicated, as strategies leave it.

        >>> keys = SavedTensor(name="keys", bits=64, sharding="tensor", n_units=8)
        >>> [keys.n_shards(n_devices) for n_devices in (4, 16, 6)]
        [4, 8, 1]
        """
        if self.n_units is None or not self.n_units % n_devices:
            return n_devices
        return self.n_units if not n_devices % self.n_units else 1


def layer_tensors(
    arch: Architecture, workload: Workload, *, is_moe: bool | None = None
) -> tuple[SavedTensor, ...]:
    """Return the tensors of one layer, its input first; `is_moe` selects the kind of layer."""
    is_moe = bool(arch.experts) if is_moe is None else is_moe
    block = _moe_tensors(arch, workload) if is_moe else _dense_tensors(arch, workload)
    return (*_attention_tensors(arch, workload), *block)


def _attention_tensors(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    bits = work.dtype.bits
    yield SavedTensor(name="input", bits=arch.hidden * bits, sharding="sequence")
    yield SavedTensor(name="normed input", bits=arch.hidden * bits, sharding="sequence")
    yield from _qkv_tensors(arch, bits)
    if not work.flash:
        yield from _attention_scores(arch, work)
    output_bits = arch.heads * arch.value_dim * bits
    yield SavedTensor(
        name="attention output", bits=output_bits, sharding="tensor", n_units=arch.heads
    )
    if work.dropout:
        yield SavedTensor(name="attention mask", bits=arch.hidden * _MASK_BITS, sharding="sequence")


def _attention_scores(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    """Yield one score per pair of tokens and head; a flash kernel never writes them to memory."""
    n_scores, bits = arch.heads * work.sequence, work.dtype.bits
    sizes = {"softmax": n_scores * bits}
    if work.dropout:
        sizes |= {"softmax mask": n_scores * _MASK_BITS, "dropped softmax": n_scores * bits}
    for name, score_bits in sizes.items():
        yield SavedTensor(
            name=name,
            bits=score_bits,
            sharding="tensor",
            is_attention_score=True,
            n_units=arch.heads,
        )


def _qkv_tensors(arch: Architecture, bits: int) -> Iterator[SavedTensor]:
    """Yield queries, keys and values: grouped-query heads, or heads grown from a latent array."""
    query_bits = arch.heads * arch.head_dim * bits
    yield SavedTensor(
        name="queries",
        bits=query_bits,
        sharding="tensor",
        is_matmul_output=True,
        n_units=arch.heads,
    )
    n_heads = arch.kv_heads
    if arch.kv_lora_rank:
        # Multi-head latent attention: all heads read one latent array, so each device of a tensor
        # axis needs all of it, and keys and values then have as many heads as queries.
        latent_bits = (arch.kv_lora_rank + arch.rope_head_dim) * bits
        yield SavedTensor(
            name="latent", bits=latent_bits, sharding="replicated", is_matmul_output=True
        )
        n_heads = arch.heads
    for name, width in (("keys", arch.head_dim), ("values", arch.value_dim)):
        yield SavedTensor(
            name=name,
            bits=n_heads * width * bits,
            sharding="tensor",
            is_matmul_output=True,
            n_units=n_heads,
        )


def _dense_tensors(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    # The first layers of a mixture may be dense and wider (DeepSeek-V3: 18432 against 2048).
    ffn = arch.dense_ffn if arch.experts and arch.dense_ffn else arch.ffn
    yield from _mlp_inputs(arch, work)
    yield from _feed_forward_tensors("", 1, ffn, arch, work)
    if work.dropout:
        yield SavedTensor(name="mlp mask", bits=arch.hidden * _MASK_BITS, sharding="sequence")


def _moe_tensors(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    """Each token goes to `top_k` experts and to all shared ones, balanced over the devices."""
    routed_bits = arch.top_k * arch.hidden * work.dtype.bits
    yield from _mlp_inputs(arch, work)
    yield SavedTensor(
        name="router", bits=arch.experts * _F32_BITS, sharding="sequence", is_matmul_output=True
    )
    yield SavedTensor(name="expert inputs", bits=routed_bits, sharding="sequence")
    yield from _feed_forward_tensors("expert ", arch.top_k, arch.ffn, arch, work)
    yield SavedTensor(name="expert outputs", bits=routed_bits, sharding="sequence")
    if arch.shared_experts:
        yield from _feed_forward_tensors(
            "shared expert ", arch.shared_experts, arch.ffn, arch, work
        )


def _mlp_inputs(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    bits = work.dtype.bits
    # The product of attention with its output weights is stored as this sum with the residual.
    yield SavedTensor(
        name="mlp input", bits=arch.hidden * bits, sharding="sequence", is_matmul_output=True
    )
    yield SavedTensor(name="normed mlp input", bits=arch.hidden * bits, sharding="sequence")


def _feed_forward_tensors(
    prefix: str, n_blocks: int, ffn: int, arch: Architecture, work: Workload
) -> Iterator[SavedTensor]:
    bits = n_blocks * ffn * work.dtype.bits
    # The down projection's output is the next layer's input, which is counted there.
    matmuls = ("gate", "up") if arch.gated else ("up",)
    for name in matmuls:
        yield SavedTensor(
            name=f"{prefix}{name}",
            bits=bits,
            sharding="tensor",
            is_matmul_output=True,
            n_units=ffn,
        )
    yield SavedTensor(name=f"{prefix}activated", bits=bits, sharding="tensor", n_units=ffn)


@dataclass(frozen=True, kw_only=True)
class TokenMemory:
    """Bytes on a device that depend on its tokens, not on how weights are sharded."""

    saved: int  # for the backward pass, of all layers and microbatches in flight
    saved_at_loss: int  # on the device that computes the loss: of one microbatch
    recomputed: int  # of the largest layer
    largest: int  # the largest tensor of a layer
    logits: int  # elements, of the tokens that the loss computes at once
    has_experts: bool = False
    stage_layers: int = 0  # with pipeline stages: the layers of one


def count_token_memory(
    arch: Architecture, shards: WorkloadShards, workload: Workload
) -> TokenMemory:
    """Return the activations of one device.

    With pipeline stages it is the first stage of a 1F1B schedule, the fullest: it has as many
    microbatches in flight as there are stages.
    """
    n_tokens, _ = _tokens_per_device(shards, workload)
    saved, _ = _saved_bytes(arch, shards, workload)
    in_flight = _microbatches_in_flight(arch, shards, workload)
    # Only one layer is recomputed at a time: the largest counts.
    layer = _largest_layer(arch, shards, workload)
    recomputed = _recomputed_tensors(layer, workload)
    return TokenMemory(
        saved=int(saved * in_flight),
        saved_at_loss=saved,
        recomputed=n_tokens * _bytes_per_token(recomputed, shards, workload),
        largest=n_tokens * max(_bytes_per_token((tensor,), shards, workload) for tensor in layer),
        logits=-(-n_tokens // workload.loss_chunks) * arch.vocab // _n_vocab_shards(arch, shards),
        has_experts=bool(arch.experts),
        stage_layers=shards.stage.per_device(arch.layers) if shards.stage.n_shards > 1 else 0,
    )


def _largest_layer(
    arch: Architecture, shards: WorkloadShards, workload: Workload
) -> tuple[SavedTensor, ...]:
    return max(
        (layer_tensors(arch, workload, is_moe=is_moe) for is_moe, _ in _layer_kinds(arch)),
        key=lambda tensors: _bytes_per_token(tensors, shards, workload),
    )


def _microbatches_in_flight(
    arch: Architecture, shards: WorkloadShards, workload: Workload
) -> float:
    # 1F1B: the first stage starts p microbatches before the first backward pass reaches it
    # (Korthikanti et al. 2022, section 4.2.3).
    n_stages = shards.stage.n_shards
    schedule = workload.schedule.for_layers(-(-arch.layers // n_stages))
    return schedule.in_flight(n_stages, workload.n_microbatches)


def _n_vocab_shards(arch: Architecture, shards: WorkloadShards) -> int:
    # Strategies replicate a vocabulary that is not divisible.
    return shards.tensor.n_shards if not arch.vocab % shards.tensor.n_shards else 1


def _tokens_per_device(shards: WorkloadShards, workload: Workload) -> tuple[int, str]:
    """Return how many tokens a device computes at once, and the formula."""
    batch = workload.microbatch or workload.batch
    name = "batch" if workload.microbatch is None else "microbatch"
    formula = f"{name} {batch:,}{shards.batch.divisor_text} × sequence {workload.sequence:,}"
    n_tokens = shards.batch.per_device(batch) * shards.sequence.per_device(workload.sequence)
    return n_tokens, formula + shards.sequence.divisor_text


def _saved_bytes(
    arch: Architecture, shards: WorkloadShards, workload: Workload
) -> tuple[int, list[str]]:
    """Return what remat saves of one microbatch in all layers of a stage, and the formulas."""
    n_tokens, _ = _tokens_per_device(shards, workload)
    kinds = [
        (_tensors_on_device(layer_tensors(arch, workload, is_moe=is_moe), workload), n_layers)
        for is_moe, n_layers in _layer_kinds(arch)
    ]
    # A stage may hold layers of one kind only: the fullest stage has the largest ones.
    kinds.sort(key=lambda kind: -_bytes_per_token(kind[0], shards, workload))
    n_in_stage = shards.stage.per_device(arch.layers)
    layers_left, n_bytes, terms = n_in_stage, 0, []
    for tensors, n_layers in kinds:
        n_here = min(n_layers, layers_left)
        layers_left -= n_here
        n_bytes += n_here * _bytes_per_token(tensors, shards, workload) * n_tokens
        if n_here and tensors:
            bytes_formula = _bytes_per_token_text(tensors, shards, workload)
            terms.append(f"{n_here} layers × {n_tokens:,} tokens × {bytes_formula}")
    return n_bytes, terms


def saved_item(
    arch: Architecture, shards: WorkloadShards, workload: Workload, policy: str = ""
) -> MemoryItem:
    """Return what the remat policy saves of all layers of the stage, with its formula.

    `policy` is its name, if the workload has what the policy of that name saves.
    """
    _, tokens_formula = _tokens_per_device(shards, workload)
    n_bytes, terms = _saved_bytes(arch, shards, workload)
    in_flight = _microbatches_in_flight(arch, shards, workload)
    flight_factor = f"{in_flight:.3g} microbatches in flight × " if in_flight > 1 else ""
    stage_note = (
        f"; layers: {arch.layers}{shards.stage.divisor_text}" if shards.stage.n_shards > 1 else ""
    )
    host_note = f"; on the host: {workload.offload}" if workload.offload else ""
    return MemoryItem(
        kind="activations",
        name=f"saved for the backward pass (remat {policy or workload.remat})",
        bytes_per_device=int(n_bytes * in_flight),
        formula=f"{flight_factor}{' + '.join(terms) or 'nothing'}; tokens: {tokens_formula}"
        f"{stage_note}{host_note}",
    )


def recomputed_text(arch: Architecture, shards: WorkloadShards, workload: Workload) -> str:
    """Return the formula of what one layer recomputes; empty if it is nothing."""
    n_tokens, tokens_formula = _tokens_per_device(shards, workload)
    tensors = _recomputed_tensors(_largest_layer(arch, shards, workload), workload)
    if not tensors:
        return ""
    bytes_formula = _bytes_per_token_text(tensors, shards, workload)
    return f"{n_tokens:,} tokens × {bytes_formula}; tokens: {tokens_formula}"


def logits_text(arch: Architecture, shards: WorkloadShards, workload: Workload) -> str:
    """Return the formula of the number of logits that are computed at once."""
    n_tokens, tokens_formula = _tokens_per_device(shards, workload)
    divisor = shards.tensor.divisor_text if _n_vocab_shards(arch, shards) > 1 else ""
    chunks = f" / {workload.loss_chunks} chunks" if workload.loss_chunks > 1 else ""
    return (
        f"{n_tokens:,} tokens{chunks} × vocabulary {arch.vocab:,}{divisor}; "
        f"tokens: {tokens_formula}"
    )


def _layer_kinds(arch: Architecture) -> list[tuple[bool, int]]:
    """Return (is mixture of experts, number of layers) for each kind of layer."""
    if not arch.experts:
        return [(False, arch.layers)]
    n_dense = min(arch.dense_layers, arch.layers)
    return [(True, arch.layers - n_dense), *([(False, n_dense)] if n_dense else [])]


def _tensors_saved_by_remat(
    tensors: Sequence[SavedTensor], workload: Workload
) -> tuple[SavedTensor, ...]:
    if (n_arrays := workload.checkpoints) is not None:
        bits = n_arrays * tensors[0].bits
        return (SavedTensor(name=f"{n_arrays} arrays", bits=bits, sharding="sequence"),)
    if (names := workload.saved_names) is not None:
        return (tensors[0], *(tensor for tensor in tensors[1:] if _is_named(tensor, names)))
    if workload.remat == "none":
        return tuple(tensors)
    if workload.remat == "selective":
        return tuple(tensor for tensor in tensors if not tensor.is_attention_score)
    # jax.checkpoint_policies.dots_with_no_batch_dims_saveable: attention scores are products too,
    # but of activations, and are recomputed.
    if workload.remat == "dots":
        return (tensors[0], *(tensor for tensor in tensors if tensor.is_matmul_output))
    return (tensors[0],)


def _is_named(tensor: SavedTensor, names: Collection[str]) -> bool:
    # The tensors of experts have the same names with a prefix.
    return tensor.name.removeprefix("shared ").removeprefix("expert ") in names


def _tensors_on_device(
    tensors: Sequence[SavedTensor], workload: Workload
) -> tuple[SavedTensor, ...]:
    """Return what remat saves, without what is offloaded to the host."""
    names = workload.offloaded_names
    saved = _tensors_saved_by_remat(tensors, workload)
    return tuple(tensor for tensor in saved if not _is_named(tensor, names))


def _recomputed_tensors(
    tensors: Sequence[SavedTensor], workload: Workload
) -> tuple[SavedTensor, ...]:
    """Return what the backward pass of one layer recomputes before it can start."""
    if workload.checkpoints is not None:  # which arrays are saved is unknown: recompute all
        return tuple(tensors)
    saved = _tensors_saved_by_remat(tensors, workload)
    names = workload.offloaded_names
    # What is on the host is not recomputed, but copied back: it needs the same memory.
    return tuple(tensor for tensor in tensors if tensor not in saved or _is_named(tensor, names))


def _bytes_per_token(
    tensors: Iterable[SavedTensor], shards: WorkloadShards, workload: Workload
) -> int:
    """Return the bytes per token on one device."""
    # In bits until the end: int4 has half a byte per element, masks have a full one.
    return sum(-(-tensor.bits // _n_shards(tensor, shards, workload)) for tensor in tensors) // 8


def _n_shards(tensor: SavedTensor, shards: WorkloadShards, workload: Workload) -> int:
    if tensor.sharding == "replicated":
        return 1
    if tensor.sharding == "sequence" and not workload.sequence_parallel:
        return 1
    return tensor.n_shards(shards.tensor.n_shards)


def _bytes_per_token_text(
    tensors: Sequence[SavedTensor], shards: WorkloadShards, workload: Workload
) -> str:
    """Return the formula of the bytes per token: which tensors are divided by what."""
    groups: dict[int, list[SavedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(_n_shards(tensor, shards, workload), []).append(tensor)
    terms = []
    for n_shards, group in groups.items():
        names = ", ".join(tensor.name for tensor in group)
        divisor = "" if n_shards == 1 else shards.tensor.divisor_text
        if n_shards not in (1, shards.tensor.n_shards):  # fewer kv heads than devices
            divisor = f" / {n_shards}"
        terms.append(f"{sum(tensor.bits for tensor in group) // 8:,} bytes{divisor} ({names})")
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
