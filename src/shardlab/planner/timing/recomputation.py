"""What the backward pass of a layer computes again, by remat policy and framework.

>>> full = recomputation(Workload(batch=8, sequence=128, remat="full"))
>>> [full.repeats("out", 3), full.repeats("down", 6), full.attention]
[True, False, True]

The output of a layer's last product is no operand of any gradient: the residual stream adds it, and
the next layer's input is saved. XLA removes that product from the recomputed layer as dead code,
and PyTorch's checkpoint stops before it (`torch.utils.checkpoint`, early stop). Megatron calls the
layer again, with this product. Experts are different: the gradient of a routing weight needs the
output of the expert, so their last product is repeated too.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.hardware.frameworks import Framework
from shardlab.planner.memory.workload import Workload

# Arrays that MaxText's policies save by name, on the device or on the host -> roles of the products
# that are not repeated then. `context` is the output of the attention kernel.
SAVED_ROLES: dict[str, tuple[str, ...]] = {
    "query_proj": ("query",),
    "key_proj": ("key",),
    "value_proj": ("value",),
    "kv_proj": ("key", "value"),
    "qkv_proj": ("query", "key", "value", "qkv"),
    "out_proj": ("out",),
    "mlpwi": ("gate", "up"),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "mlpwo": ("down",),
    "context": (),
    "decoder_layer_input": (),
}


@dataclass(frozen=True, kw_only=True)
class Recomputation:
    """What is computed twice: products with weights, the attention kernel, passes over memory."""

    products: bool = False
    attention: bool = False
    passes: bool = False
    is_every_second: bool = False  # of the products only every second one
    repeats_last: bool = False  # the product whose output is the layer's output too
    saved_roles: frozenset[str] = frozenset()

    def repeats(self, role: str, index: int) -> bool:
        """Return whether a product is repeated; `index` is its position in the layer."""
        if not self.products or role in self.saved_roles:
            return False
        if self.is_every_second:
            return index % 2 == 1
        return role != "down" or self.repeats_last


NOTHING = Recomputation()


def recomputation(workload: Workload, framework: Framework | None = None) -> Recomputation:
    """Return what a remat policy repeats; without a framework as XLA does it.

    Saving an array on the host takes as long as on the device: the copies overlap with compute.
    """
    if names := workload.remat_names:
        roles = frozenset(role for name in names for role in SAVED_ROLES[name])
        return Recomputation(
            products=True, attention="context" not in names, passes=True, saved_roles=roles
        )
    if workload.remat == "none":
        return NOTHING
    if workload.remat == "selective":
        if framework is not None and framework.selective == "operations":
            # torchtitan's per-operation policy: every second product is recomputed, attention is
            # saved (pytorch/torchtitan b5bcd76, distributed/activation_checkpoint.py).
            return Recomputation(products=True, is_every_second=True, passes=True)
        # Scores only (Korthikanti et al. 2022); a flash kernel stores none.
        return NOTHING if workload.flash else Recomputation(attention=True)
    if workload.remat == "dots":
        return Recomputation(attention=True, passes=True)
    repeats_last = framework is not None and framework.repeats_last
    return Recomputation(products=True, attention=True, passes=True, repeats_last=repeats_last)
