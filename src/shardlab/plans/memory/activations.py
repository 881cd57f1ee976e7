"""Activations: what a training step keeps on one device for its backward pass, by formula.

>>> from shardlab.plans.sources.load import load_model
>>> from shardlab.layouts.mesh import parse_mesh
>>> whole = parse_mesh("data=1")
>>> work = Workload(batch=1000, sequence=4000, remat="4")  # the scaling book: 4 arrays a layer
>>> activation_items(load_model("llama3-70b"), whole, work)[0].bytes_per_device
20971520000000

An estimate: what XLA fuses it does not keep, and what it copies on the way is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlab.layouts.mesh import Mesh
from shardlab.plans.memory.kept import Kept, layer_tensors
from shardlab.plans.memory.shares import Shares, shares_of
from shardlab.plans.memory.workload import Workload
from shardlab.plans.model import Architecture, Model
from shardlab.records.plan import Item

_LOGIT_BITS = 32  # the loss is computed in f32, whatever the model computes in


def activation_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[Item, ...]:
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


def _kept_item(arch: Architecture, shares: Shares, workload: Workload) -> Item:
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
    return Item(
        "activations",
        f"kept for the backward pass (remat {workload.remat})",
        n_bytes * in_flight,
        f"{flight}{' + '.join(words)}; tokens: {told}{staged}",
    )


def _one_layer_item(tensors: Sequence[Kept], shares: Shares, workload: Workload) -> Item:
    tokens, told = tokens_here(shares, workload)
    return Item(
        "activations",
        "one layer computed again",
        _bytes(tensors, shares, workload) * tokens,
        f"{tokens:,} tokens × {_text(tensors, shares, workload)}; tokens: {told}",
    )


def _logits_item(arch: Architecture, shares: Shares, workload: Workload) -> Item:
    tokens, told = tokens_here(shares, workload)
    parts = shares.tensor.parts if not arch.vocab % shares.tensor.parts else 1
    over = shares.tensor.over if parts > 1 else ""
    return Item(
        "activations",
        "logits",
        tokens * arch.vocab // parts * _LOGIT_BITS // 8,
        f"{tokens:,} tokens × {arch.vocab:,} of the vocabulary × 4 bytes{over}; tokens: {told}",
    )


def _kinds(arch: Architecture) -> list[tuple[bool, int]]:
    """Return whether layers are mixtures, and how many are."""
    if not arch.experts:
        return [(False, arch.layers)]
    dense = min(arch.dense_layers, arch.layers)
    return [(True, arch.layers - dense), *([(False, dense)] if dense else [])]


def _policy(tensors: Sequence[Kept], workload: Workload) -> tuple[Kept, ...]:
    """Return those that the remat policy keeps."""
    if (n := workload.checkpoints) is not None:
        return (Kept(f"{n} arrays", n * tensors[0].bits, "between"),)
    if workload.remat == "none":
        return tuple(tensors)
    if workload.remat == "selective":
        return tuple(each for each in tensors if not each.is_score)
    if workload.remat == "dots":
        return (tensors[0], *(each for each in tensors if each.is_product))
    return (tensors[0],)


def _working_set(tensors: Sequence[Kept], workload: Workload) -> tuple[Kept, ...]:
    """Return what the backward pass of one layer computes again before it can begin."""
    if workload.checkpoints is not None:
        return tuple(tensors)
    kept = _policy(tensors, workload)
    return tuple(each for each in tensors if each not in kept)


def _bytes(tensors: Iterable[Kept], shares: Shares, workload: Workload) -> int:
    """Return the bytes for each token on one device."""
    return sum(-(-each.bits // _parts(each, shares, workload)) for each in tensors) // 8


def _parts(kept: Kept, shares: Shares, workload: Workload) -> int:
    if kept.cut == "whole" or (kept.cut == "between" and not workload.sequence_parallel):
        return 1
    return kept.parts(shares.tensor.parts)


def _text(tensors: Sequence[Kept], shares: Shares, workload: Workload) -> str:
    """Return the bytes of a token in words: what is divided by what."""
    groups: dict[int, list[Kept]] = {}
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
