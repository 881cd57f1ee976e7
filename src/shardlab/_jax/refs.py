"""Turns a program that changes `Ref`s (jax.new_ref) in place into one that returns new values.

JAX does the same when it lowers a jit ("discharge"): a `Ref` argument becomes an array argument,
and its final value one more result, which JAX then writes back into the `Ref`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax._src import core  # Ref and the effect of refs made inside a program
from jax._src.interpreters import pxla  # what a jit does with refs before it lowers
from jax._src.state.discharge import discharge_state  # removes refs from a jaxpr
from jax._src.state.types import AbstractRef, RefEffect  # refs that were passed in


@dataclasses.dataclass(frozen=True, kw_only=True)
class DischargedProgram:
    """A jaxpr without refs, and how its arguments and results belong to the original's."""

    jaxpr: Any
    donated: tuple[bool, ...]
    # The arguments of the original that the jaxpr takes; refs that it closes over follow them.
    used_args: tuple[int, ...]
    closed_over: tuple[Any, ...] = ()
    # For each result the argument, a ref, whose new value it is; None for a result of the original.
    updated_args: tuple[int | None, ...] = ()

    def array_arguments(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of `jaxpr`, each ref as the array behind it."""
        return [_buffer(value) for value in self._all_arguments(args)]

    def update_refs(self, args: Sequence[Any], outs: Sequence[Any]) -> list[tuple[Any, int]]:
        """Write new values into the refs; return each array behind a ref and its result's index."""
        arguments = self._all_arguments(args)
        updated = []
        for index, position in enumerate(self.updated_args):
            if position is None or not hasattr(outs[index], "_replace_with"):
                continue  # a float0 array has no buffer
            buffer = _buffer(arguments[position])
            buffer._replace_with(outs[index])
            updated.append((buffer, index))
        return updated

    def original_results(self, outs: Sequence[Any]) -> list[Any]:
        """Return the results that the original program has, without the values of refs."""
        if not self.updated_args:
            return list(outs)
        return [
            out for out, position in zip(outs, self.updated_args, strict=True) if position is None
        ]

    def _all_arguments(self, args: Sequence[Any]) -> list[Any]:
        return [*(args[i] for i in self.used_args), *self.closed_over]


def discharge_refs(
    jaxpr: Any, donated: tuple[bool, ...], *, keep_unused: bool, has_refs: bool
) -> DischargedProgram:
    """Return `jaxpr` without refs; `has_refs` says that it has some as arguments or constants."""
    if has_refs:
        # In the order of `pxla.lower_sharding_computation`, so that the results are those whose
        # shardings it has computed: a ref that is never used has no result.
        used, donated, used_args = pxla._dce_jaxpr(jaxpr, keep_unused, donated)
        discharged, _, mutation = pxla._discharge_refs(used)
        return DischargedProgram(
            jaxpr=discharged,
            donated=(*donated, *(False for _ in mutation.in_mut)),
            used_args=tuple(sorted(used_args)),
            closed_over=tuple(mutation.in_mut),
            updated_args=tuple(mutation.out_mut),
        )
    if uses_refs(jaxpr):
        jaxpr = discharge_state(jaxpr)
    return DischargedProgram(
        jaxpr=jaxpr, donated=donated, used_args=tuple(range(len(jaxpr.in_avals)))
    )


def takes_refs(jaxpr: Any) -> bool:
    """Return whether a program has refs as arguments or closes over them."""
    is_ref_argument = any(isinstance(aval, AbstractRef) for aval in jaxpr.in_avals)
    return is_ref_argument or any(isinstance(effect, RefEffect) for effect in jaxpr.effects)


def uses_refs(jaxpr: Any) -> bool:
    """Return whether a program takes, closes over or makes a ref."""
    return any(
        isinstance(effect, (core.InternalMutableArrayEffect, RefEffect)) for effect in jaxpr.effects
    )


def _buffer(value: Any) -> Any:
    """Return the array behind a ref; any other value is returned as it is."""
    return value._refs._buf if isinstance(value, core.Ref) else value
