"""Optimizers: which arrays each stores per parameter, and which counters per model.

>>> from shardlab.sharding.dtype import parse_dtype
>>> f32, adafactor = parse_dtype("f32"), parse_optimizer("adafactor")
>>> states = optimizer_states(adafactor, (256, 512), f32, DtypePolicy())
>>> [(state.name, state.shape) for state in states]
[('v_row', (256,)), ('v_col', (512,)), ('v', (1,))]

Shapes, dtypes and counters equal those of the Optax functions of the same names, to the byte. A
master copy, which Optax leaves to the program, belongs to adamw as the ZeRO paper and Megatron
count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.sharding.dtype import Dtype

_MIN_FACTORED = 128  # adafactor: Optax's min_dim_size_to_factor
Shape = tuple[int, ...]
# For each dimension of an optimizer array the dimension of the parameter that it equals; None for
# the placeholder of size 1 that Optax stores where it has nothing to store.
ParameterDims = tuple[int | None, ...]
StateLayout = Callable[[Shape], Iterator[tuple[str, ParameterDims]]]


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """One array that an optimizer stores for a parameter, sharded like `parameter_dims` of it."""

    name: str
    shape: Shape
    dtype: Dtype
    parameter_dims: ParameterDims


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What an optimizer stores: arrays per parameter by its shape, and counters of its own."""

    name: str
    state_layout: StateLayout
    counters: tuple[tuple[str, int], ...] = ()  # name and bytes, replicated on every device
    has_master: bool = False  # in the literature's count, unless a policy says otherwise

    @property
    def is_training(self) -> bool:
        """Whether there are gradients and states at all; "none" plans inference."""
        return self.name != "none"


def parse_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer with a name such as `adamw`; an `Optimizer` is returned as it is."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    name = optimizer.strip().lower() if isinstance(optimizer, str) else ""
    match = _OPTIMIZERS.get(_ALIASES.get(name, name))
    if match is None:
        suggestion = nearest_name(optimizer, _OPTIMIZERS) if isinstance(optimizer, str) else None
        raise UnknownOption(
            f"Unknown optimizer {short_repr(optimizer)}; known: {', '.join(_OPTIMIZERS)}.",
            fix=f"Did you mean {suggestion!r}?" if suggestion else "one of these names.",
        )
    return match


# Plans of large models ask for the same shape in every layer.
@lru_cache(maxsize=4096)
def optimizer_states(
    optimizer: Optimizer, shape: Shape, dtype: Dtype, policy: DtypePolicy
) -> tuple[OptimizerState, ...]:
    """Return the arrays stored for one parameter of that shape and dtype, a master copy first."""
    states = []
    if optimizer.is_training and policy.has_master(dtype, optimizer.has_master):
        all_dims = tuple(range(len(shape)))
        states.append(
            OptimizerState(name="master", shape=shape, dtype=policy.master, parameter_dims=all_dims)
        )
    for name, dims in optimizer.state_layout(shape):
        sizes = tuple(1 if dim is None else shape[dim] for dim in dims)
        moment = policy.moment(dtype)
        states.append(OptimizerState(name=name, shape=sizes, dtype=moment, parameter_dims=dims))
    return tuple(states)


def _parameter_shaped(*names: str) -> StateLayout:
    """Return the layout of arrays that each have the shape of the parameter."""

    def state_layout(shape: Shape) -> Iterator[tuple[str, ParameterDims]]:
        for name in names:
            yield name, tuple(range(len(shape)))

    return state_layout


def _adafactor_layout(shape: Shape) -> Iterator[tuple[str, ParameterDims]]:
    """Yield row and column statistics over the two largest dimensions, if both are large enough.

    Optax (`_factored_dims`) sorts by size with numpy's argsort: of equal sizes the first counts as
    the smaller one, and `sorted` is stable in the same way.
    """
    all_dims = tuple(range(len(shape)))
    by_size = sorted(all_dims, key=shape.__getitem__)
    if len(shape) < 2 or shape[by_size[-2]] < _MIN_FACTORED:
        yield from (("v_row", (None,)), ("v_col", (None,)), ("v", all_dims))
        return
    second, largest = by_size[-2:]
    yield "v_row", tuple(dim for dim in all_dims if dim != largest)
    yield "v_col", tuple(dim for dim in all_dims if dim != second)
    yield "v", (None,)


def _muon_layout(shape: Shape) -> Iterator[tuple[str, ParameterDims]]:
    """Yield one moment for a matrix; Optax's muon updates everything else with Adam."""
    return (_parameter_shaped("mu") if len(shape) == 2 else _parameter_shaped("mu", "nu"))(shape)


# An int32 step counter; `momentum` and `sgd` have none in Optax.
_COUNT = (("count", 4),)
_ALIASES = {"sgdm": "momentum", "sgd-momentum": "momentum", "sgd+momentum": "momentum"}
_OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer(name="none", state_layout=_parameter_shaped()),
        Optimizer(name="sgd", state_layout=_parameter_shaped()),
        Optimizer(name="momentum", state_layout=_parameter_shaped("trace")),
        Optimizer(name="adam", state_layout=_parameter_shaped("mu", "nu"), counters=_COUNT),
        Optimizer(
            name="adamw",
            state_layout=_parameter_shaped("mu", "nu"),
            counters=_COUNT,
            has_master=True,
        ),
        Optimizer(name="adafactor", state_layout=_adafactor_layout, counters=_COUNT),
        Optimizer(name="lion", state_layout=_parameter_shaped("mu"), counters=_COUNT),
        Optimizer(
            name="muon",
            state_layout=_muon_layout,
            # optax.contrib.muon: its count, three f32 Newton-Schulz coefficients, Adam's count.
            counters=(("count", 4), ("ns_coeffs", 12), ("adam's count", 4)),
        ),
    )
}
