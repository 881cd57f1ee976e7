"""Compares the collectives that were claimed with those that XLA's partitioner inserts.

Shardy's passes and XLA's partitioner take the same shardings, and still do not print the same
operations: XLA reshards in other steps, merges, and counts as one what Shardy lists as two. Each
such difference that costs nothing, or the same, is a rule here with its reason. A rule applies to
what is left after equal collectives are matched, so it can never hide a collective that the other
side has too. What no rule explains is a difference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from shardlab._jax.partitioned_program import InsertedCall
from shardlab._text.units import bytes_text, count_text
from shardlab.autoshard.proof.proof_record import (
    CollectiveDifference,
    CollectiveProof,
    CollectiveTotal,
    Normalisation,
    total_wire_bytes,
)
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import REDUCTIONS, wire_bytes
from shardlab.sharding.dtype import parse_dtype
from shardlab.tracing.trace import most_expensive_branches

Kind = tuple[str, tuple[str, ...]]  # operation and mesh axes, in mesh order
Payloads = dict[Kind, int]

# A reduction of a loss, a norm or a counter costs latency and no bandwidth.
_SMALL_REDUCTION_BYTES = 1024
# The share of the traffic that may stay unexplained: padding and index arrays of gathers.
_TOLERANCE = 0.01
_PERMUTE_SHARE = 0.1


# Shardy's kinds by JAX's names. It does not say what an all-reduce computes, so maxima count as
# sums on both sides: they cost the same.
_OPS = {
    "all_reduce": "psum",
    "all_gather": "all_gather",
    "reduce_scatter": "psum_scatter",
    "all_to_all": "all_to_all",
    "collective_permute": "ppermute",
}


def compare_collectives(
    claims: Sequence[InsertedCall] | None,
    inserted: Sequence[CollectiveCall],
    sizes: Mapping[str, int],
) -> CollectiveProof:
    """Return whether XLA inserts the claimed collectives, per device and execution.

    `proven` if they agree; `disproven` if XLA sends what was not claimed, so that the program is
    slower than promised; `not proven` if it only sends less: the claim is then an upper bound.
    """
    inserted = [
        dataclasses.replace(call, op="psum") if call.op in REDUCTIONS else call for call in inserted
    ]
    xla = _collective_totals(inserted, sizes)
    if claims is None:
        return CollectiveProof(
            verdict="not proven",
            sentence=f"Shardy rejects these shardings; XLA inserts {_totals_text(xla)}.",
            xla=xla,
        )
    claimed = [_collective_call(call) for call in claims]
    claim = _collective_totals(claimed, sizes)
    comparison = _Comparison(claimed, inserted, sizes)
    differences = comparison.differences()
    only_claimed = sum(difference.claimed_bytes for difference in differences)
    only_xla = sum(difference.xla_bytes for difference in differences)
    allowed = _TOLERANCE * max(total_wire_bytes(xla), total_wire_bytes(claim))
    allowed = max(allowed, _SMALL_REDUCTION_BYTES)
    record = CollectiveProof(
        verdict="proven",
        sentence=f"XLA's partitioner inserts the claimed collectives: {_totals_text(xla)}.",
        xla=xla,
        claimed=claim,
        normalisations=tuple(comparison.normalisations),
        differences=differences,
    )
    if only_xla > allowed:
        return dataclasses.replace(
            record,
            verdict="disproven",
            sentence=f"XLA's partitioner sends {bytes_text(only_xla)} per device that were not "
            f"claimed: {_worst_text(differences, lambda item: item.xla_bytes)}.",
        )
    if only_claimed > allowed:
        return dataclasses.replace(
            record,
            verdict="not proven",
            sentence=f"XLA's partitioner sends {bytes_text(only_claimed)} per device less than "
            f"was claimed, which is an upper bound then: "
            f"{_worst_text(differences, lambda item: item.claimed_bytes)}.",
        )
    return record


def _collective_call(claim: InsertedCall) -> CollectiveCall:
    op = _OPS[claim.kind]
    return CollectiveCall(
        op=op,
        mesh_axes=claim.axes,
        # Only the number of elements is compared, so the shard counts as a vector.
        shape=(claim.operand_bytes // parse_dtype(claim.dtype).n_bytes(1),),
        dtype=claim.dtype,
        payload_bytes=claim.operand_bytes,
        wire_bytes=wire_bytes(op, claim.operand_bytes, claim.group_size),
        count=claim.count,
        phase="backward" if claim.is_backward else "forward",
        group_size=claim.group_size,
        origin="compiler",
    )


def _worst_text(
    differences: Sequence[CollectiveDifference], size: Callable[[CollectiveDifference], int]
) -> str:
    return max(differences, key=size).text


def _totals_text(totals: Sequence[CollectiveTotal]) -> str:
    if not totals:
        return "none"
    parts = ", ".join(total.text for total in totals[:4])
    rest = f" and {count_text(len(totals) - 4, 'other kind')}" if len(totals) > 4 else ""
    return f"{parts}{rest}; {bytes_text(total_wire_bytes(totals))} sent per device"


# ------------------------------------------------------------------------------------- totals


def _kind(call: CollectiveCall, sizes: Mapping[str, int]) -> Kind:
    order = list(sizes)
    known = sorted(
        call.mesh_axes, key=lambda axis: order.index(axis) if axis in order else len(order)
    )
    return call.op, tuple(known)


def _executions(call: CollectiveCall) -> int:
    # Inside a while loop the count is unknown on both sides: one iteration is compared.
    return 1 if call.count is None else call.count


def _counted_calls(calls: Sequence[CollectiveCall]) -> list[CollectiveCall]:
    return [call for call in most_expensive_branches(calls) if call.wire_bytes > 0]


def _collective_totals(
    calls: Sequence[CollectiveCall], sizes: Mapping[str, int]
) -> tuple[CollectiveTotal, ...]:
    """Return the totals by operation and mesh axes, the most bytes first."""
    totals: dict[Kind, CollectiveTotal] = {}
    for call in _counted_calls(calls):
        kind, n = _kind(call, sizes), _executions(call)
        before = totals.get(kind)
        totals[kind] = CollectiveTotal(
            op=kind[0],
            mesh_axes=kind[1],
            n_calls=n + (before.n_calls if before else 0),
            payload_bytes=n * call.payload_bytes + (before.payload_bytes if before else 0),
            wire_bytes=n * call.wire_bytes + (before.wire_bytes if before else 0),
        )
    return tuple(sorted(totals.values(), key=lambda total: -total.wire_bytes))


# ------------------------------------------------------------------------------------- rules


class _Comparison:
    """The payloads that one side has and the other has not, reduced rule by rule."""

    def __init__(
        self,
        claimed: Sequence[CollectiveCall],
        inserted: Sequence[CollectiveCall],
        sizes: Mapping[str, int],
    ) -> None:
        self._sizes = sizes
        self.normalisations: list[Normalisation] = []
        claimed, inserted = self._drop_small_reductions(claimed, inserted)
        claimed_payloads = self._payloads(claimed)
        xla_payloads = self._payloads(inserted)
        self._apply_element_types(claimed, inserted, claimed_payloads, xla_payloads)
        kinds = {*claimed_payloads, *xla_payloads}
        surplus = {
            kind: claimed_payloads.get(kind, 0) - xla_payloads.get(kind, 0) for kind in kinds
        }
        self._claimed: Payloads = {kind: n for kind, n in surplus.items() if n > 0}
        self._xla: Payloads = {kind: -n for kind, n in surplus.items() if n < 0}
        for left, right in ((self._claimed, self._xla), (self._xla, self._claimed)):
            self._join_reduce_scatters(left, right)
            self._join_mesh_axes(left, right)
        self._join_all_to_alls()
        self._merge_gathers(xla_payloads)
        self._drop_permutes(max(sum(map(_total_bytes, side)) for side in (claimed, inserted)))

    def differences(self) -> tuple[CollectiveDifference, ...]:
        kinds = sorted({*self._claimed, *self._xla})
        records = [
            CollectiveDifference(
                op=kind[0],
                mesh_axes=kind[1],
                claimed_bytes=self._wire(kind, self._claimed.get(kind, 0)),
                xla_bytes=self._wire(kind, self._xla.get(kind, 0)),
            )
            for kind in kinds
        ]
        found = [record for record in records if record.claimed_bytes or record.xla_bytes]
        return tuple(sorted(found, key=lambda item: -item.claimed_bytes - item.xla_bytes))

    def _payloads(self, calls: Sequence[CollectiveCall]) -> Payloads:
        payloads: Payloads = {}
        for call in calls:
            kind = _kind(call, self._sizes)
            payloads[kind] = payloads.get(kind, 0) + _executions(call) * call.payload_bytes
        return payloads

    def _group_size(self, mesh_axes: tuple[str, ...]) -> int:
        return math.prod(self._sizes.get(axis, 1) for axis in mesh_axes)

    def _wire(self, kind: Kind, payload: int) -> int:
        op, mesh_axes = kind
        return wire_bytes(op, payload, self._group_size(mesh_axes)) if payload else 0

    def _note(self, rule: str, reason: str, n_bytes: int) -> None:
        if n_bytes:
            self.normalisations.append(Normalisation(rule=rule, reason=reason, wire_bytes=n_bytes))

    def _drop_small_reductions(
        self, claimed: Sequence[CollectiveCall], inserted: Sequence[CollectiveCall]
    ) -> tuple[list[CollectiveCall], list[CollectiveCall]]:
        def is_small(call: CollectiveCall) -> bool:
            return call.op in REDUCTIONS and call.payload_bytes <= _SMALL_REDUCTION_BYTES

        sides = [_counted_calls(calls) for calls in (claimed, inserted)]
        n_bytes = [
            sum(_executions(call) * call.wire_bytes for call in side if is_small(call))
            for side in sides
        ]
        if n_bytes[0] != n_bytes[1]:
            self._note(
                "reductions of scalars",
                f"all-reduces of at most {_SMALL_REDUCTION_BYTES} bytes (losses, norms, counters) "
                "are merged or repeated freely and cost no bandwidth",
                max(n_bytes),
            )
        left, right = ([call for call in side if not is_small(call)] for side in sides)
        return left, right

    def _apply_element_types(
        self,
        claimed: Sequence[CollectiveCall],
        inserted: Sequence[CollectiveCall],
        claimed_payloads: Payloads,
        xla_payloads: Payloads,
    ) -> None:
        """Take the claimed width where both send the same elements, wider on XLA's side."""
        elements = [
            self._payloads([_as_elements(call) for call in side]) for side in (claimed, inserted)
        ]
        n_bytes = 0
        for kind in {*claimed_payloads, *xla_payloads}:
            same_elements = elements[0].get(kind) == elements[1].get(kind)
            if same_elements and xla_payloads[kind] > claimed_payloads[kind]:
                n_bytes += self._wire(kind, xla_payloads[kind] - claimed_payloads[kind])
                xla_payloads[kind] = claimed_payloads[kind]
        self._note(
            "bf16 as f32",
            "XLA for CPU widens narrow floats before it sums them; a TPU or GPU sends them as "
            "they are",
            n_bytes,
        )

    def _join_reduce_scatters(self, left: Payloads, right: Payloads) -> None:
        """Match all-reduces of one side with reduce-scatters, with or without all-gathers."""
        n_bytes = 0
        for kind in [kind for kind in left if kind[0] == "psum"]:
            scatter, gather = ("psum_scatter", kind[1]), ("all_gather", kind[1])
            n = min(left[kind], right.get(scatter, 0))
            if not n:
                continue
            n_bytes += self._wire(kind, n)
            _take(left, kind, n)
            _take(right, scatter, n)
            # An all-reduce is a reduce-scatter and an all-gather of its result.
            _take(right, gather, min(right.get(gather, 0), n // self._group_size(kind[1])))
        self._note(
            "all-reduce and slice",
            "an all-reduce of which each device keeps its slice is a reduce-scatter, and followed "
            "by an all-gather it is the all-reduce again",
            n_bytes,
        )

    def _join_all_to_alls(self) -> None:
        """Match claimed all-gathers with all-to-alls of XLA.

        Never the other way round: in a group of g, an all-gather sends g times the bytes of the
        all-to-all that was claimed.
        """
        n_bytes = 0
        for kind in [kind for kind in self._claimed if kind[0] == "all_gather"]:
            exchange = ("all_to_all", kind[1])
            n = min(self._claimed[kind], self._xla.get(exchange, 0))
            if n:
                n_bytes += self._wire(kind, n)
                _take(self._claimed, kind, n)
                _take(self._xla, exchange, n)
        self._note(
            "all-gather and slice",
            "an all-gather of which each device keeps another slice is an all-to-all of the same "
            "shard",
            n_bytes,
        )

    def _join_mesh_axes(self, left: Payloads, right: Payloads) -> None:
        """Match a collective over several mesh axes with the same one axis by axis."""
        n_bytes = 0
        for kind in [kind for kind in left if len(kind[1]) > 1]:
            op, mesh_axes = kind
            parts = [(op, (axis,)) for axis in mesh_axes]
            if not all(part in right for part in parts):
                continue
            claimed_bytes = self._wire(kind, left[kind])
            split_bytes = sum(self._wire(part, right[part]) for part in parts)
            # Within the tolerance, one after the other sends as much as all at once; an
            # all-reduce per axis sends more, because each sums the full operand.
            if split_bytes <= claimed_bytes * (1 + _TOLERANCE) or op in REDUCTIONS:
                n_bytes += claimed_bytes
                n = left[kind]
                _take(left, kind, n)
                for part in parts:
                    _take(right, part, min(right[part], n) if op in REDUCTIONS else right[part])
        self._note(
            "mesh axes one by one",
            "a collective over several mesh axes is the same collective over one after the other",
            n_bytes,
        )

    def _merge_gathers(self, xla_payloads: Payloads) -> None:
        """Ignore an all-gather that XLA inserts once and Shardy twice: forward and backward."""
        n_bytes = 0
        for kind in [kind for kind in self._claimed if kind[0] == "all_gather"]:
            # At most as much as XLA gathers at all: each array at most once more.
            n = min(self._claimed[kind], xla_payloads.get(kind, 0))
            n_bytes += self._wire(kind, n)
            _take(self._claimed, kind, n)
        self._note(
            "repeated all-gathers",
            "XLA gathers an array once where Shardy gathers it for the forward and again for the "
            "backward pass; the claim is an upper bound",
            n_bytes,
        )

    def _drop_permutes(self, total_bytes: int) -> None:
        """Ignore permutes that are a small share; many of them are traffic that was not claimed."""
        sides = (self._claimed, self._xla)
        permutes = [(side, kind) for side in sides for kind in side if kind[0] == "ppermute"]
        n_bytes = sum(self._wire(kind, side[kind]) for side, kind in permutes)
        if n_bytes > _PERMUTE_SHARE * total_bytes:
            return
        for side, kind in permutes:
            del side[kind]
        self._note(
            "collective-permutes",
            "XLA moves shards between neighbours for slices, padding and another order of mesh "
            "axes; Shardy leaves these to the partitioner",
            n_bytes,
        )


def _total_bytes(call: CollectiveCall) -> int:
    return _executions(call) * call.wire_bytes


def _take(payloads: Payloads, kind: Kind, n: int) -> None:
    """Reduce the payload of one kind, and remove it when nothing is left."""
    if kind in payloads:
        payloads[kind] -= n
        if payloads[kind] <= 0:
            del payloads[kind]


def _as_elements(call: CollectiveCall) -> CollectiveCall:
    return dataclasses.replace(call, payload_bytes=math.prod(call.shape))
