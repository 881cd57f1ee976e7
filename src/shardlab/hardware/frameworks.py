"""Frameworks: what the software of a training run reaches of a chip, by name or by the mesh.

>>> from shardlab.hardware.chips import parse_hardware
>>> h100 = parse_hardware("h100")
>>> default_framework(h100, ["data", "tensor"]).name, default_framework(h100, ["fsdp"]).name
('megatron', 'torchtitan')
>>> default_framework(parse_hardware("a100"), ["data", "tensor"], is_gpt=True).name
'megatron-2022'
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.hardware.chips import Hardware


@dataclass(frozen=True, kw_only=True)
class Framework:
    """The software of a run: the fractions that it reaches, and where it is the default."""

    name: str
    title: str
    network: str
    compute: float
    attention: float
    passes: float
    remat: str = "selective"  # by default
    selective: Literal["scores", "operations"] = "scores"
    repeats_last: bool = False
    cast_bytes: int = 0
    expert_cast_bytes: int = 0
    expert_tile: int = 128
    attention_block: int = 128
    attention_generation: int | None = None
    gathers_casts: bool = False
    orders_ranks: bool = False
    step_overhead: float = 0.0  # seconds of the host that no operation hides
    schedule: str = "interleaved"  # of pipeline stages, by default
    zero: int = 0  # stage over data axes, by default
    flat_states: bool = False
    flash: bool = True
    dropout: bool = False
    only_generation: int | None = None
    only_gpt: bool = False

    def gathered_bits(self, dtype: str) -> int:
        """Return the bits of the operands that tensor axes gather before a product."""
        return 8 if self.gathers_casts and dtype != "bf16" else 16

    mesh: str = ""  # the mesh axis that selects the row; "-": only by name


# Reaches all that the figures of a chip allow
FULLY_FUSED = Framework(
    name="",
    title="",
    network="",
    compute=1.0,
    attention=1.0,
    passes=1.0,
    attention_block=0,
    expert_tile=0,
)


# vLLM and similar: captured graphs, and one product for queries, keys and values. Between two
# tokens the host schedules and samples: 1.5 ms, which is what one of the published points takes
# longer than its operations (llama3-8b on A100, vLLM 0.6).
SERVING = replace(
    FULLY_FUSED,
    name="serving",
    title="a serving engine with captured graphs, such as vLLM",
    step_overhead=1.5e-3,
)


@cache
def frameworks() -> dict[str, Framework]:
    """Return all frameworks by name."""
    table = tomllib.loads(files("shardlab.hardware").joinpath("frameworks.toml").read_text("utf-8"))
    return {name: Framework(name=name, **row) for name, row in table.items()}


def default_framework(
    hardware: Hardware, mesh_axes: Collection[str], *, is_gpt: bool = False
) -> Framework:
    """Return the framework that runs on this kind of hardware usually, with such a mesh.

    `is_gpt`: the model is one like GPT-3, without gated MLPs and grouped heads.
    """
    rows = [row for row in frameworks().values() if row.network == hardware.network]
    if selected := [row for row in rows if row.mesh in mesh_axes]:
        return selected[0]
    for row in rows if is_gpt else ():
        if row.only_gpt and row.only_generation == hardware.tensor_core_generation:
            return row
    return next(row for row in rows if not row.mesh)


def parse_framework(framework: Any) -> Framework | None:
    """Return a framework by name; None stays None, and the mesh decides."""
    if framework is None or isinstance(framework, Framework):
        return framework
    name = str(framework).strip().lower()
    if name in frameworks():
        return frameworks()[name]
    nearest = nearest_name(name, frameworks())
    raise UnknownOption(
        f"Unknown framework {short_repr(framework)}.",
        where=f"one of {', '.join(frameworks())}",
        fix=f"Did you mean {nearest!r}?" if nearest else "'megatron'.",
    )
