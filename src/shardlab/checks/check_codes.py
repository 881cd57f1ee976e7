"""Every finding there is: its code, how grave it is, and its name. Each has a page in docs/.

How findings put mesh axes, calls and bytes.

>>> named(("data", "model")), amount(1536), amount(3 * 2**26)
("'data', 'model'", '1.5 KiB', '192 MiB')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation


@dataclass(frozen=True)
class Code:
    """One kind of finding."""

    severity: Severity
    title: str


CODES = {
    # What hangs, or gives wrong numbers without a word.
    "hazard.deadlock": Code("error", "a collective that not all devices reach"),
    "hazard.mismatched_collectives": Code("error", "devices meet in different collectives"),
    "hazard.replicas_differ": Code("error", "copies declared equal that are not"),
    "hazard.mesh_dependent": Code("error", "values or gradients that change with the mesh"),
    "hazard.psum_of_replicated": Code("warning", "a sum of equal copies"),
    "hazard.ppermute_axis_order": Code("warning", "a ppermute whose order of axes is ignored"),
    "hazard.constraint_replicates": Code("warning", "a constraint that replicates instead"),
    # Specs that do not fit.
    "spec.unknown_axis": Code("error", "a mesh axis that does not exist"),
    "spec.rank": Code("error", "a spec longer than its array has axes"),
    "spec.indivisible": Code("error", "an array axis that the mesh does not divide"),
    "spec.wrong_argument": Code("error", "a spec that fits another argument"),
    # Right, and dearer than need be.
    "waste.replicated": Code("warning", "a large array left whole on every device"),
    "waste.all_gather_then_slice": Code("warning", "an all-gather of which a slice is used"),
    "waste.psum_then_slice": Code("warning", "a psum of which a slice is used"),
    "waste.loop_invariant_collective": Code(
        "warning", "a collective that gives the same in every turn"
    ),
    # What JAX says itself.
    "jax.rejected": Code("error", "a program that JAX refuses"),
    "ignore.invalid": Code("warning", "an ignore comment that silences nothing"),
    "program.no_communication": Code("info", "a program with nothing to check"),
}


def finding(
    code: str,
    what: str,
    where: SourceLocation | None,
    fix: str,
    *,
    cause: str = "",
    shows: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding of a known code, with the severity of its kind."""
    return Finding(
        code=code,
        severity=CODES[code].severity,
        what=what,
        where=where,
        fix=fix,
        cause=cause,
        shows=shows,
        details=details or {},
    )


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def named(axes: Sequence[str]) -> str:
    """Return mesh axes in quotes: `'data'`, or `'data', 'model'`."""
    return ", ".join(f"'{axis}'" for axis in axes)


def as_argument(axes: Sequence[str]) -> str:
    """Return mesh axes as a person writes them in a call: `'data'`, or `('data', 'model')`."""
    return named(axes) if len(axes) == 1 else f"({named(axes)})"


def called(call: CollectiveCall) -> str:
    """Return a call in words: `psum over 'data'`."""
    return f"{call.op} over {named(call.mesh_axes)}"


def count(n: int, noun: str) -> str:
    """Return a number of things in words: `1 more output`, `8 more outputs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def amount(n_bytes: int) -> str:
    """Return bytes in the largest unit that leaves at least one."""
    unit = min((max(n_bytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    if unit == 0:
        return f"{n_bytes} byte{'s' * (n_bytes != 1)}"
    return f"{n_bytes / 1024**unit:.3g} {_UNITS[unit]}"


def mesh_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return a mesh as text: `data=2, model=4`."""
    return ", ".join(f"{name}={size}" for name, size in sizes)
