"""What a transformer layer computes that its backward pass reads, tensor by tensor.

>>> gpt3 = Architecture(96, 12288, 96, 96, 128, 4 * 12288, 51200, gated=False)
>>> both = Workload(1, 2048, flash=False, dropout=True)
>>> sum(each.bits for each in layer_tensors(gpt3, both)) // 8 / 12288  # 34 + 5as/h
114.0

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) count a layer like this: 34 + 5as/h bytes
for each token and hidden element. Here the same is counted for any measures, so that theirs is the
case of a GPT layer with dropout in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardlab.plans.memory.workload import Workload
from shardlab.plans.model import Architecture

_MASK_BITS = 8  # a mask of dropout is kept as bytes
_F32_BITS = 32


@dataclass(frozen=True)
class Kept:
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

        >>> [Kept("keys", 64, "tensor", units=8).parts(n) for n in (4, 16, 6)]
        [4, 8, 1]
        """
        if self.units is None or not self.units % n:
            return n
        return self.units if not n % self.units else 1


def layer_tensors(
    arch: Architecture, workload: Workload, *, is_mixture: bool | None = None
) -> tuple[Kept, ...]:
    """Return the tensors of one layer, its input first; `is_mixture` chooses the kind of layer."""
    mixture = bool(arch.experts) if is_mixture is None else is_mixture
    block = _mixture(arch, workload) if mixture else _dense(arch, workload)
    return (*_attention(arch, workload), *block)


def _attention(arch: Architecture, work: Workload) -> Iterator[Kept]:
    bits = work.dtype.bits
    yield Kept("input", arch.hidden * bits, "between")
    yield Kept("normed input", arch.hidden * bits, "between")
    yield from _heads(arch, bits)
    if not work.flash:
        yield from _scores(arch, work)
    attended = arch.heads * arch.value_dim * bits
    yield Kept("attended", attended, "tensor", units=arch.heads)
    if work.dropout:
        yield Kept("attention mask", arch.hidden * _MASK_BITS, "between")


def _scores(arch: Architecture, work: Workload) -> Iterator[Kept]:
    """One for each pair of tokens and head: a kernel that never writes them keeps none."""
    scores, bits, most = arch.heads * work.sequence, work.dtype.bits, arch.heads
    yield Kept("softmax", scores * bits, "tensor", is_score=True, units=most)
    if work.dropout:
        yield Kept("softmax mask", scores * _MASK_BITS, "tensor", is_score=True, units=most)
        yield Kept("dropped softmax", scores * bits, "tensor", is_score=True, units=most)


def _heads(arch: Architecture, bits: int) -> Iterator[Kept]:
    """Queries, keys and values: of fewer heads than queries have, or grown from a latent array."""
    query = arch.heads * arch.head_dim * bits
    yield Kept("queries", query, "tensor", is_product=True, units=arch.heads)
    heads = arch.kv_heads
    if arch.kv_lora_rank:
        latent = (arch.kv_lora_rank + arch.rope_head_dim) * bits
        yield Kept("latent", latent, "whole", is_product=True)
        heads = arch.heads
    for name, size in (("keys", arch.head_dim), ("values", arch.value_dim)):
        yield Kept(name, heads * size * bits, "tensor", is_product=True, units=heads)


def _dense(arch: Architecture, work: Workload) -> Iterator[Kept]:
    ffn = arch.dense_ffn if arch.experts and arch.dense_ffn else arch.ffn
    yield from _between(arch, work)
    yield from _feed_forward("", 1, ffn, arch, work)
    if work.dropout:
        yield Kept("mlp mask", arch.hidden * _MASK_BITS, "between")


def _mixture(arch: Architecture, work: Workload) -> Iterator[Kept]:
    """Each token goes to `top_k` experts and to all shared ones, evenly over the devices."""
    bits = work.dtype.bits
    yield from _between(arch, work)
    yield Kept("router", arch.experts * _F32_BITS, "between", is_product=True)
    yield Kept("sent to experts", arch.top_k * arch.hidden * bits, "between")
    yield from _feed_forward("experts' ", arch.top_k, arch.ffn, arch, work)
    yield Kept("experts' results", arch.top_k * arch.hidden * bits, "between")
    if arch.shared_experts:
        yield from _feed_forward("shared ", arch.shared_experts, arch.ffn, arch, work)


def _between(arch: Architecture, work: Workload) -> Iterator[Kept]:
    bits = work.dtype.bits
    yield Kept("second input", arch.hidden * bits, "between", is_product=True)
    yield Kept("normed second input", arch.hidden * bits, "between")


def _feed_forward(
    of: str, times: int, ffn: int, arch: Architecture, work: Workload
) -> Iterator[Kept]:
    bits = times * ffn * work.dtype.bits
    if arch.gated:
        yield Kept(f"{of}gate", bits, "tensor", is_product=True, units=ffn)
    yield Kept(f"{of}up", bits, "tensor", is_product=True, units=ffn)
    yield Kept(f"{of}activated", bits, "tensor", units=ffn)
