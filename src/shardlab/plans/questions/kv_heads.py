"""Are there kv heads enough for the tensor axis?"""

from __future__ import annotations

from math import gcd

from shardlab.layouts.amount import memory_text
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.memory.shares import Share, shares_of
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan, PlanRow


def kv_heads(plan: Plan, asked: Asked) -> list[Finding]:
    """Return a finding where devices of the tensor axis cannot each have kv heads of their own.

    Latent attention has one array for all heads, and a mesh whose tensor axis cuts nothing is none.
    """
    arch, share = asked.model.architecture, shares_of(asked.mesh).tensor
    if arch is None or arch.kv_lora_rank or not arch.kv_heads % share.parts:
        return []
    names = {name for name, _ in share.axes}
    if not any(names & set(row.parameter.spec.mesh_axes) for row in plan.rows):
        return []
    rows = [row for row in plan.rows if "kv_heads" in (row.axes or ())]
    fitting = gcd(arch.kv_heads, share.parts)
    left = share.parts // fitting
    return [
        finding(
            "plan.kv_heads",
            f"There are {arch.kv_heads} kv heads for {share.parts} devices over {share}: "
            f"{_told(arch.kv_heads, share)}.",
            f"{fitting} device{'s' * (fitting > 1)} on the tensor axis and {left} times as many on "
            f"a batch axis, or kv heads repeated {left} times in the model.",
            shows=_shows(plan, rows, names),
            details={"kv_heads": arch.kv_heads, "parts": share.parts, "fitting": fitting},
        )
    ]


def _told(heads: int, share: Share) -> str:
    if heads > share.parts:
        return f"some devices have {-(-heads // share.parts)} of them and others fewer"
    if share.parts % heads:
        return "devices have parts of heads, which do not fall together with heads"
    return f"{share.parts // heads} devices share each, and hold copies of its keys and values"


def _shows(plan: Plan, rows: list[PlanRow], names: set[str]) -> tuple[str, ...]:
    """Say what becomes of the weights of keys and values, and of the cache."""
    lines = []
    whole = [row for row in rows if not names & set(row.parameter.spec.mesh_axes)]
    cut = [row for row in rows if row not in whole]
    if whole:
        held = memory_text(sum(row.bytes_per_device for row in whole))
        lines.append(f"{whole[0].path} and others like it are not cut by it: {held} on each device")
    if cut:
        shape = list(cut[0].parameter.shard_shape)
        lines.append(
            f"{cut[0].path} is cut inside heads, {shape} on a device: attention needs them whole, "
            "so that XLA gathers them in every layer"
        )
    if cache := plan.bytes_of("kv_cache"):
        lines.append(f"the cache takes {memory_text(cache)} on each device, copies and all")
    return tuple(lines)
