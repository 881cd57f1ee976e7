"""The workload: what a step computes on, beside the model itself.

>>> Workload(batch=64, sequence=4096).n_microbatches
1
>>> Workload(64, 4096, remat="ful")
Traceback (most recent call last):
    ...
shardlab.errors.UnknownOption: [plan.unknown_option] There is no remat policy 'ful'.
  where: one of none, selective, dots, full, or a number of arrays per layer
  try:   'full', the nearest name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidSize, InvalidType, UnknownOption, short_repr
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.shape import parse_size

# name -> what a device keeps of each layer for the backward pass
REMAT = {
    "none": "everything the backward pass reads",
    "selective": "everything but the attention scores, which are computed again",
    "dots": "the layer's input and what its matrix products with weights give",
    "full": "the layer's input",
}
_BF16 = parse_dtype("bf16")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sequences in a step over all devices, tokens in each, and what is kept for the backward pass.

    Without an optimizer it is inference: the batch is served at once, and its tokens are cached.
    """

    batch: int
    sequence: int
    # a name of REMAT, or a number: so many arrays of [batch, sequence, hidden] for each layer
    remat: str = "full"
    microbatch: int | None = None  # sequences computed at once over all devices; None: the batch
    dtype: Dtype = _BF16  # of activations
    cache_dtype: Dtype = _BF16  # of keys and values
    flash: bool = True  # a flash attention kernel never writes the scores
    sequence_parallel: bool = True  # tensor axes cut what stands between the blocks too
    dropout: bool = False  # masks of one byte an element are kept

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "microbatch"):
            if (size := getattr(self, name)) is not None or name != "microbatch":
                self._set(name, _count(size, name))
        for name in ("dtype", "cache_dtype"):
            self._set(name, parse_dtype(getattr(self, name)))
        for name in ("flash", "sequence_parallel", "dropout"):
            if not isinstance(getattr(self, name), bool):
                shown = getattr(self, name)
                raise InvalidType(
                    f"{name} of the workload is {short_repr(shown)}.", fix="True or False."
                )
        self._set("remat", _remat(self.remat))
        if self.microbatch is not None and self.batch % self.microbatch:
            raise _not_a_part(self.batch, self.microbatch)

    @property
    def n_microbatches(self) -> int:
        """Into how many parts, one after the other, the batch is divided."""
        return 1 if self.microbatch is None else self.batch // self.microbatch

    @property
    def checkpoints(self) -> int | None:
        """The number of arrays kept of each layer, where `remat` is a number."""
        return int(self.remat) if self.remat.isdecimal() else None

    def choices(self, is_training: bool) -> dict[str, str | int]:
        """Return what the plan depends on; what is as usual is not said."""
        told: dict[str, str | int] = {"batch": self.batch, "sequence": self.sequence}
        if not is_training:
            return told | {"cache_dtype": self.cache_dtype.short}
        if self.microbatch is not None:
            told["microbatch"] = self.microbatch
        told |= {"remat": self.checkpoints or self.remat, "activation_dtype": self.dtype.short}
        usual = {"flash": True, "sequence_parallel": True, "dropout": False}
        return told | {
            name: bool(getattr(self, name))
            for name, value in usual.items()
            if getattr(self, name) != value
        }

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen, so that a checked workload stays so


def parse_workload(workload: Any) -> Workload | None:
    """Return the workload meant by one, by a mapping of its fields, or by nothing.

    >>> parse_workload({"batch": 8, "sequence": 128}) == Workload(8, 128)
    True
    """
    if workload is None or isinstance(workload, Workload):
        return workload
    known = [each.name for each in fields(Workload)]
    if not isinstance(workload, Mapping):
        raise InvalidType(
            f"{short_repr(workload)} is not a workload.", fix="Workload(batch=64, sequence=4096)."
        )
    for name in workload:
        if name not in known:
            near = nearest_name(name, known) if isinstance(name, str) else None
            raise UnknownOption(
                f"A workload has no {short_repr(name)}; it has {', '.join(known)}.",
                fix=f"{near!r}, the nearest name." if near else "one of these.",
            )
    if missing := [name for name in ("batch", "sequence") if name not in workload]:
        raise UnknownOption(
            f"The workload has no {missing[0]}.",
            where=f"a workload of {', '.join(workload) or 'nothing'}",
            fix=f"give the {missing[0]} too.",
        )
    return Workload(**workload)


def _count(size: Any, name: str) -> int:
    if isinstance(size, bool):  # an int to Python, never a count to a person
        raise InvalidType(f"The size of the {name} is {size}.", fix="a whole number, such as 8.")
    return parse_size(size, f"the {name}", at_least=1)


def _remat(remat: Any) -> str:
    if isinstance(remat, int) and not isinstance(remat, bool):
        remat = short_repr(remat)
    if isinstance(remat, str):
        name = remat.strip().lower()
        if name in REMAT:
            return name
        if name.isascii() and name.isdecimal() and len(name) <= 3 and int(name):
            return str(int(name))
    near = nearest_name(remat, REMAT) if isinstance(remat, str) else None
    raise UnknownOption(
        f"There is no remat policy {short_repr(remat)}.",
        where=f"one of {', '.join(REMAT)}, or a number of arrays per layer",
        fix=f"{near!r}, the nearest name." if near else "'full', or a number such as 4.",
    )


def _not_a_part(batch: int, microbatch: int) -> InvalidSize:
    near = max(n for n in range(1, min(batch, microbatch, 4096) + 1) if batch % n == 0)
    return InvalidSize(
        f"The microbatch of {microbatch:,} does not divide the batch of {batch:,}.",
        fix=f"a microbatch of {near:,}, so that all parts are alike.",
    )
