"""The workload of a step: batch, sequence length, remat policy, activation dtypes.

>>> Workload(batch=64, sequence=4096).n_microbatches
1
>>> Workload(batch=64, sequence=4096, remat="ful")
Traceback (most recent call last):
    ...
shardlab.errors.UnknownOption: [plan.unknown_option] Unknown remat policy 'ful'.
  where: one of none, selective, dots, full, or a number of arrays per layer
  try:   Did you mean 'full'?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidSize, InvalidType, UnknownOption, short_repr
from shardlab.planner.strategies.pipeline_schedule import (
    ONE_F_ONE_B,
    PipelineSchedule,
    parse_schedule,
)
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.shape import parse_size

# Remat policy -> what a device saves of each layer for the backward pass
REMAT_POLICIES = {
    "none": "everything the backward pass reads",
    "selective": "everything but the attention scores, which are recomputed",
    "dots": "the layer's input and the outputs of its matrix products with weights",
    "full": "the layer's input",
}
_BF16 = parse_dtype("bf16")
_MAX_NEAREST = 4096  # largest divisor of a batch that an error message suggests


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sequences per step over all devices, tokens per sequence, and what the forward pass saves.

    Without an optimizer it is inference: the batch is served at once, and its tokens are cached.
    """

    batch: int
    sequence: int
    # a key of REMAT_POLICIES, or a number: that many [batch, sequence, hidden] arrays per layer
    remat: str = "full"
    microbatch: int | None = None  # sequences computed at once over all devices; None: the batch
    dtype: Dtype = _BF16  # of activations
    cache_dtype: Dtype = _BF16  # of keys and values
    flash: bool = True  # a flash attention kernel never writes the scores to memory
    sequence_parallel: bool = True  # tensor axes also shard what is between the blocks
    dropout: bool = False  # its masks are saved, one byte per element
    schedule: PipelineSchedule = ONE_F_ONE_B  # of pipeline stages: how many microbatches they hold

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "microbatch"):
            if (size := getattr(self, name)) is not None or name != "microbatch":
                self._set_field(name, _parse_count(size, name))
        for name in ("dtype", "cache_dtype"):
            self._set_field(name, parse_dtype(getattr(self, name)))
        for name in ("flash", "sequence_parallel", "dropout"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidType(
                    f"{name} of the workload is {short_repr(value)}.", fix="True or False."
                )
        self._set_field("remat", _parse_remat(self.remat))
        self._set_field("schedule", parse_schedule(self.schedule))
        if self.microbatch is not None and self.batch % self.microbatch:
            raise _indivisible_batch(self.batch, self.microbatch)

    @property
    def n_microbatches(self) -> int:
        """How many microbatches, one after the other, the batch is divided into."""
        return 1 if self.microbatch is None else self.batch // self.microbatch

    @property
    def checkpoints(self) -> int | None:
        """The number of arrays saved per layer, if `remat` is a number."""
        return int(self.remat) if self.remat.isdecimal() else None

    def choices(self, is_training: bool) -> dict[str, str | int]:
        """Return the options that a plan depends on, without those that have their default."""
        options: dict[str, str | int] = {"batch": self.batch, "sequence": self.sequence}
        if not is_training:
            return options | {"cache_dtype": self.cache_dtype.short}
        if self.microbatch is not None:
            options["microbatch"] = self.microbatch
        options |= {"remat": self.checkpoints or self.remat, "activation_dtype": self.dtype.short}
        defaults = {"flash": True, "sequence_parallel": True, "dropout": False}
        return options | {
            name: bool(getattr(self, name))
            for name, default in defaults.items()
            if getattr(self, name) != default
        }

    def _set_field(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen


def parse_workload(workload: Any) -> Workload | None:
    """Return a workload from one, from a mapping of its fields, or None.

    >>> parse_workload({"batch": 8, "sequence": 128}) == Workload(batch=8, sequence=128)
    True
    """
    if workload is None or isinstance(workload, Workload):
        return workload
    names = [field.name for field in fields(Workload)]
    if not isinstance(workload, Mapping):
        raise InvalidType(
            f"{short_repr(workload)} is not a workload.", fix="Workload(batch=64, sequence=4096)."
        )
    for name in workload:
        if name not in names:
            suggestion = nearest_name(name, names) if isinstance(name, str) else None
            raise UnknownOption(
                f"A workload has no field {short_repr(name)}; known: {', '.join(names)}.",
                fix=f"Did you mean {suggestion!r}?" if suggestion else "one of these names.",
            )
    if missing := [name for name in ("batch", "sequence") if name not in workload]:
        raise UnknownOption(
            f"The workload has no {missing[0]}.",
            where=f"a workload with {', '.join(workload) or 'no fields'}",
            fix=f"add the {missing[0]}.",
        )
    return Workload(**workload)


def _parse_count(size: Any, name: str) -> int:
    if isinstance(size, bool):  # a subclass of int, but a mistake here
        raise InvalidType(f"The size of the {name} is {size}.", fix="an integer, such as 8.")
    return parse_size(size, f"the {name}", at_least=1)


def _parse_remat(remat: Any) -> str:
    if isinstance(remat, int) and not isinstance(remat, bool):
        remat = short_repr(remat)
    if isinstance(remat, str):
        name = remat.strip().lower()
        if name in REMAT_POLICIES:
            return name
        # isdecimal() is also true for digits of other scripts, which int() reads
        if name.isascii() and name.isdecimal() and len(name) <= 3 and int(name):
            return str(int(name))
    suggestion = nearest_name(remat, REMAT_POLICIES) if isinstance(remat, str) else None
    raise UnknownOption(
        f"Unknown remat policy {short_repr(remat)}.",
        where=f"one of {', '.join(REMAT_POLICIES)}, or a number of arrays per layer",
        fix=f"Did you mean {suggestion!r}?" if suggestion else "'full', or a number such as 4.",
    )


def _indivisible_batch(batch: int, microbatch: int) -> InvalidSize:
    limit = min(batch, microbatch, _MAX_NEAREST)
    nearest = max(size for size in range(1, limit + 1) if batch % size == 0)
    return InvalidSize(
        f"The batch of {batch:,} is not divisible by the microbatch of {microbatch:,}.",
        fix=f"a microbatch of {nearest:,}.",
    )
