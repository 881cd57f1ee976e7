"""Activations: what a training step keeps on one device for its backward pass, by formula.

>>> from shardlab.planner.models.load import load_model
>>> from shardlab.sharding.mesh import parse_mesh
>>> whole = parse_mesh("data=1")
>>> work = Workload(batch=1000, sequence=4000, remat="4")  # the scaling book: 4 arrays a layer
>>> activation_items(load_model("llama3-70b"), whole, work)[0].bytes_per_device
20971520000000

An estimate: what XLA fuses it does not keep, and what it copies on the way is not counted.

What a transformer layer computes that its backward pass reads, tensor by tensor.

>>> gpt3 = Architecture(96, 12288, 96, 96, 128, 4 * 12288, 51200, gated=False)
>>> both = Workload(1, 2048, flash=False, dropout=True)
>>> sum(each.bits for each in layer_tensors(gpt3, both)) // 8 / 12288  # 34 + 5as/h
114.0

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) count a layer like this: 34 + 5as/h bytes
for each token and hidden element. Here the same is counted for any measures, so that theirs is the
case of a GPT layer with dropout in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shardlab.planner.memory.batch_shards import Shares, shares_of
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.plan import MemoryItem
from shardlab.sharding.mesh import Mesh

_MASK_BITS = 8  # a mask of dropout is kept as bytes
_F32_BITS = 32


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One tensor of a layer: bits for each token, and what divides it.

    `cut` is "tensor" inside the blocks, "between" for what stands between them (whole on every
    device of a tensor axis unless sequence parallelism cuts it), "whole" for what nothing cuts.
    """

    name: str
    bits: int
    cut: Literal["tensor", "between", "whole"]
    is_score: bool = False
    is_product: bool = False  # of a matrix product with weights: what remat "dots" keeps
    units: int | None = None  # what must stay whole: heads, columns of the feed-forward part

    def parts(self, n: int) -> int:
        """Return into how many parts n devices cut it: beyond one unit each they hold copies.

        Where units and devices do not go into each other it is whole, as strategies leave it.

        >>> [SavedTensor("keys", 64, "tensor", units=8).parts(n) for n in (4, 16, 6)]
        [4, 8, 1]
        """
        if self.units is None or not self.units % n:
            return n
        return self.units if not n % self.units else 1


def layer_tensors(
    arch: Architecture, workload: Workload, *, is_mixture: bool | None = None
) -> tuple[SavedTensor, ...]:
    """Return the tensors of one layer, its input first; `is_mixture` chooses the kind of layer."""
    mixture = bool(arch.experts) if is_mixture is None else is_mixture
    block = _mixture(arch, workload) if mixture else _dense(arch, workload)
    return (*_attention(arch, workload), *block)


def _attention(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    bits = work.dtype.bits
    yield SavedTensor(name="input", bits=arch.hidden * bits, cut="between")
    yield SavedTensor(name="normed input", bits=arch.hidden * bits, cut="between")
    yield from _heads(arch, bits)
    if not work.flash:
        yield from _scores(arch, work)
    attended = arch.heads * arch.value_dim * bits
    yield SavedTensor(name="attended", bits=attended, cut="tensor", units=arch.heads)
    if work.dropout:
        yield SavedTensor(name="attention mask", bits=arch.hidden * _MASK_BITS, cut="between")


def _scores(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    """One for each pair of tokens and head: a kernel that never writes them keeps none."""
    scores, bits, most = arch.heads * work.sequence, work.dtype.bits, arch.heads
    yield SavedTensor(name="softmax", bits=scores * bits, cut="tensor", is_score=True, units=most)
    if work.dropout:
        yield SavedTensor(
            name="softmax mask", bits=scores * _MASK_BITS, cut="tensor", is_score=True, units=most
        )
        yield SavedTensor(
            name="dropped softmax", bits=scores * bits, cut="tensor", is_score=True, units=most
        )


def _heads(arch: Architecture, bits: int) -> Iterator[SavedTensor]:
    """Queries, keys and values: of fewer heads than queries have, or grown from a latent array."""
    query = arch.heads * arch.head_dim * bits
    yield SavedTensor(name="queries", bits=query, cut="tensor", is_product=True, units=arch.heads)
    heads = arch.kv_heads
    if arch.kv_lora_rank:
        latent = (arch.kv_lora_rank + arch.rope_head_dim) * bits
        yield SavedTensor(name="latent", bits=latent, cut="whole", is_product=True)
        heads = arch.heads
    for name, size in (("keys", arch.head_dim), ("values", arch.value_dim)):
        yield SavedTensor(
            name=name, bits=heads * size * bits, cut="tensor", is_product=True, units=heads
        )


def _dense(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    ffn = arch.dense_ffn if arch.experts and arch.dense_ffn else arch.ffn
    yield from _between(arch, work)
    yield from _feed_forward("", 1, ffn, arch, work)
    if work.dropout:
        yield SavedTensor(name="mlp mask", bits=arch.hidden * _MASK_BITS, cut="between")


def _mixture(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    """Each token goes to `top_k` experts and to all shared ones, evenly over the devices."""
    bits = work.dtype.bits
    yield from _between(arch, work)
    yield SavedTensor(name="router", bits=arch.experts * _F32_BITS, cut="between", is_product=True)
    yield SavedTensor(name="sent to experts", bits=arch.top_k * arch.hidden * bits, cut="between")
    yield from _feed_forward("experts' ", arch.top_k, arch.ffn, arch, work)
    yield SavedTensor(name="experts' results", bits=arch.top_k * arch.hidden * bits, cut="between")
    if arch.shared_experts:
        yield from _feed_forward("shared ", arch.shared_experts, arch.ffn, arch, work)


def _between(arch: Architecture, work: Workload) -> Iterator[SavedTensor]:
    bits = work.dtype.bits
    yield SavedTensor(name="second input", bits=arch.hidden * bits, cut="between", is_product=True)
    yield SavedTensor(name="normed second input", bits=arch.hidden * bits, cut="between")


def _feed_forward(
    of: str, times: int, ffn: int, arch: Architecture, work: Workload
) -> Iterator[SavedTensor]:
    bits = times * ffn * work.dtype.bits
    if arch.gated:
        yield SavedTensor(name=f"{of}gate", bits=bits, cut="tensor", is_product=True, units=ffn)
    yield SavedTensor(name=f"{of}up", bits=bits, cut="tensor", is_product=True, units=ffn)
    yield SavedTensor(name=f"{of}activated", bits=bits, cut="tensor", units=ffn)


_LOGIT_BITS = 32  # the loss is computed in f32, whatever the model computes in


def activation_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[MemoryItem, ...]:
    """Return what one device keeps, each item with its formula; nothing where measures are unknown.

    With pipeline stages it is the first stage of a 1F1B schedule, the fullest: it has as many
    microbatches in flight as there are stages.
    """
    if (arch := model.architecture) is None:
        return ()
    shares = shares_of(mesh)
    heaviest = max(
        (layer_tensors(arch, workload, is_mixture=kind) for kind, _ in _kinds(arch)),
        key=lambda tensors: _bytes(tensors, shares, workload),
    )
    items = [_kept_item(arch, shares, workload)]
    if working := _working_set(heaviest, workload):
        items.append(_one_layer_item(working, shares, workload))
    items.append(_logits_item(arch, shares, workload))
    return tuple(items)


def tokens_here(shares: Shares, workload: Workload) -> tuple[int, str]:
    """Return how many tokens a device works on at once, and how that comes about."""
    batch = workload.microbatch or workload.batch
    name = "batch" if workload.microbatch is None else "microbatch"
    words = f"{name} {batch:,}{shares.batch.over} × sequence {workload.sequence:,}"
    tokens = shares.batch.of(batch) * shares.sequence.of(workload.sequence)
    return tokens, words + shares.sequence.over


def _kept_item(arch: Architecture, shares: Shares, workload: Workload) -> MemoryItem:
    """All layers of the stage, each with what the remat policy keeps."""
    tokens, told = tokens_here(shares, workload)
    kinds = [
        (_policy(layer_tensors(arch, workload, is_mixture=kind), workload), n)
        for kind, n in _kinds(arch)
    ]
    kinds.sort(key=lambda kind: -_bytes(kind[0], shares, workload))
    n_layers, n_bytes, words = shares.stage.of(arch.layers), 0, []
    for tensors, n in kinds:  # the heaviest layers first: a stage may have none but these
        here = min(n, n_layers)
        n_layers -= here
        n_bytes += here * _bytes(tensors, shares, workload) * tokens
        if here:
            words.append(f"{here} layers × {tokens:,} tokens × {_text(tensors, shares, workload)}")
    in_flight = min(shares.stage.parts, workload.n_microbatches)
    flight = f"{in_flight} microbatches in flight × " if in_flight > 1 else ""
    staged = f"; layers: {arch.layers}{shares.stage.over}" if shares.stage.parts > 1 else ""
    return MemoryItem(
        kind="activations",
        name=f"kept for the backward pass (remat {workload.remat})",
        bytes_per_device=n_bytes * in_flight,
        formula=f"{flight}{' + '.join(words)}; tokens: {told}{staged}",
    )


def _one_layer_item(
    tensors: Sequence[SavedTensor], shares: Shares, workload: Workload
) -> MemoryItem:
    tokens, told = tokens_here(shares, workload)
    return MemoryItem(
        kind="activations",
        name="one layer computed again",
        bytes_per_device=_bytes(tensors, shares, workload) * tokens,
        formula=f"{tokens:,} tokens × {_text(tensors, shares, workload)}; tokens: {told}",
    )


def _logits_item(arch: Architecture, shares: Shares, workload: Workload) -> MemoryItem:
    tokens, told = tokens_here(shares, workload)
    parts = shares.tensor.parts if not arch.vocab % shares.tensor.parts else 1
    over = shares.tensor.over if parts > 1 else ""
    return MemoryItem(
        kind="activations",
        name="logits",
        bytes_per_device=tokens * arch.vocab // parts * _LOGIT_BITS // 8,
        formula=f"{tokens:,} tokens × {arch.vocab:,} of the vocabulary × 4 bytes{over}; tokens: {told}",
    )


def _kinds(arch: Architecture) -> list[tuple[bool, int]]:
    """Return whether layers are mixtures, and how many are."""
    if not arch.experts:
        return [(False, arch.layers)]
    dense = min(arch.dense_layers, arch.layers)
    return [(True, arch.layers - dense), *([(False, dense)] if dense else [])]


def _policy(tensors: Sequence[SavedTensor], workload: Workload) -> tuple[SavedTensor, ...]:
    """Return those that the remat policy keeps."""
    if (n := workload.checkpoints) is not None:
        return (SavedTensor(name=f"{n} arrays", bits=n * tensors[0].bits, cut="between"),)
    if workload.remat == "none":
        return tuple(tensors)
    if workload.remat == "selective":
        return tuple(each for each in tensors if not each.is_score)
    if workload.remat == "dots":
        return (tensors[0], *(each for each in tensors if each.is_product))
    return (tensors[0],)


def _working_set(tensors: Sequence[SavedTensor], workload: Workload) -> tuple[SavedTensor, ...]:
    """Return what the backward pass of one layer computes again before it can begin."""
    if workload.checkpoints is not None:
        return tuple(tensors)
    kept = _policy(tensors, workload)
    return tuple(each for each in tensors if each not in kept)


def _bytes(tensors: Iterable[SavedTensor], shares: Shares, workload: Workload) -> int:
    """Return the bytes for each token on one device."""
    return sum(-(-each.bits // _parts(each, shares, workload)) for each in tensors) // 8


def _parts(kept: SavedTensor, shares: Shares, workload: Workload) -> int:
    if kept.cut == "whole" or (kept.cut == "between" and not workload.sequence_parallel):
        return 1
    return kept.parts(shares.tensor.parts)


def _text(tensors: Sequence[SavedTensor], shares: Shares, workload: Workload) -> str:
    """Return the bytes of a token in words: what is divided by what."""
    groups: dict[int, list[SavedTensor]] = {}
    for each in tensors:
        groups.setdefault(_parts(each, shares, workload), []).append(each)
    told = []
    for parts, group in groups.items():
        names = ", ".join(each.name for each in group)
        over = "" if parts == 1 else shares.tensor.over
        if parts not in (1, shares.tensor.parts):
            over = f" / {parts}"
        told.append(f"{sum(each.bits for each in group) // 8:,} bytes{over} ({names})")
    return told[0] if len(told) == 1 else f"({' + '.join(told)})"
