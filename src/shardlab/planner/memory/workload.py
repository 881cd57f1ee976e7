"""The workload of a step: batch, sequence length, remat policy, activation dtypes.

>>> Workload(batch=64, sequence=4096).n_microbatches
1
>>> Workload(batch=64, sequence=4096, remat="ful")
Traceback (most recent call last):
    ...
shardlab.errors.UnknownOption: [plan.unknown_option] Unknown remat policy 'ful'.
  where: one of none, selective, dots, full, a number of arrays per layer, or names joined by +
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
# MaxText's name of a tensor that a remat policy saves or offloads -> our tensors of a layer. The
# output of the MLP is the next layer's input, which every policy saves.
REMAT_TENSORS = {
    "decoder_layer_input": ("input",),
    "query_proj": ("queries",),
    "key_proj": ("keys",),
    "value_proj": ("values",),
    "kv_proj": ("keys", "values"),
    "qkv_proj": ("queries", "keys", "values"),
    "context": ("attention output",),
    "out_proj": ("mlp input",),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "mlpwi": ("gate", "up"),
    "mlpwo": (),
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
    # a key of REMAT_POLICIES; a number: that many [batch, sequence, hidden] arrays per layer; or
    # names of REMAT_TENSORS joined by "+": the layer's input and these tensors
    remat: str = "full"
    offload: str = ""  # names of REMAT_TENSORS joined by "+": saved in the memory of the host
    offload_optimizer: bool = False  # its states are on the host, and on the device for the update
    loss_chunks: int = 1  # cross-entropy computes the logits of this fraction of the tokens at once
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
        self._set_field("loss_chunks", _parse_count(self.loss_chunks, "loss_chunks"))
        for name in ("dtype", "cache_dtype"):
            self._set_field(name, parse_dtype(getattr(self, name)))
        for name in ("flash", "sequence_parallel", "dropout", "offload_optimizer"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidType(
                    f"{name} of the workload is {short_repr(value)}.", fix="True or False."
                )
        self._set_field("remat", _parse_remat(self.remat))
        self._set_field("offload", _parse_offload(self.offload))
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

    @property
    def remat_names(self) -> tuple[str, ...]:
        """MaxText's names in `remat`, if it is a list of names; otherwise nothing."""
        names = tuple(self.remat.split("+"))
        return names if names[0] in REMAT_TENSORS else ()

    @property
    def saved_names(self) -> frozenset[str] | None:
        """The tensors of a layer that `remat` names, if it is a list of names."""
        return _tensor_names(self.remat) if self.remat_names else None

    @property
    def offloaded_names(self) -> frozenset[str]:
        """The tensors of a layer that are saved on the host."""
        return _tensor_names(self.offload)

    def choices(self, is_training: bool) -> dict[str, str | int]:
        """Return the options that a plan depends on, without those that have their default."""
        options: dict[str, str | int] = {"batch": self.batch, "sequence": self.sequence}
        if not is_training:
            return options | {"cache_dtype": self.cache_dtype.short}
        if self.microbatch is not None:
            options["microbatch"] = self.microbatch
        options |= {"remat": self.checkpoints or self.remat, "activation_dtype": self.dtype.short}
        defaults: dict[str, str | int] = {
            "flash": True,
            "sequence_parallel": True,
            "dropout": False,
        }
        defaults |= {"offload": "", "offload_optimizer": False, "loss_chunks": 1}
        return options | {
            name: getattr(self, name)
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
        if (names := _parse_tensor_names(name)) is not None:
            return names
    known = (*REMAT_POLICIES, *REMAT_TENSORS)
    suggestion = nearest_name(remat, known) if isinstance(remat, str) else None
    raise UnknownOption(
        f"Unknown remat policy {short_repr(remat)}.",
        where=f"one of {', '.join(REMAT_POLICIES)}, a number of arrays per layer, or names joined "
        "by +",
        fix=f"Did you mean {suggestion!r}?" if suggestion else "'full', or a number such as 4.",
    )


def _parse_offload(offload: Any) -> str:
    if isinstance(offload, str):
        if not offload.strip():
            return ""
        if (names := _parse_tensor_names(offload.strip().lower())) is not None:
            return names
    suggestion = nearest_name(offload, REMAT_TENSORS) if isinstance(offload, str) else None
    raise UnknownOption(
        f"Unknown tensors to offload: {short_repr(offload)}.",
        where=f"names joined by +, of {', '.join(REMAT_TENSORS)}",
        fix=f"Did you mean {suggestion!r}?" if suggestion else "such as decoder_layer_input.",
    )


def _parse_tensor_names(text: str) -> str | None:
    """Return names joined by "+" without repetitions; None if one of them is unknown."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split("+")))
    return "+".join(names) if all(name in REMAT_TENSORS for name in names) else None


def _tensor_names(text: str) -> frozenset[str]:
    names = text.split("+") if text else ()
    return frozenset(tensor for name in names for tensor in REMAT_TENSORS[name])


def _indivisible_batch(batch: int, microbatch: int) -> InvalidSize:
    limit = min(batch, microbatch, _MAX_NEAREST)
    nearest = max(size for size in range(1, limit + 1) if batch % size == 0)
    return InvalidSize(
        f"The batch of {batch:,} is not divisible by the microbatch of {microbatch:,}.",
        fix=f"a microbatch of {nearest:,}.",
    )
