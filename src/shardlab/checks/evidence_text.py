"""Lines that show what a finding is about: arrays, shortened, and the collectives on a path."""

from __future__ import annotations

import numpy as np

from shardlab.checks.tolerance import Array
from shardlab.simulator.run_records import CollectiveSite, OutputLineage

DIGITS = 5  # of a number, unless more are needed to tell two apart


def array_text(array: Array, digits: int = DIGITS) -> str:
    """Return an array in one short line.

    >>> array_text(np.arange(12.0).reshape(3, 4) / 7)
    '[[0. ... 0.42857] ... [1.14286 ... 1.57143]]'
    """
    array = np.asarray(array)
    edge = 2 if array.ndim < 2 else 1
    text = np.array2string(array, threshold=6, edgeitems=edge, precision=digits)
    return " ".join(text.split()).replace("[ ", "[").replace(" ]", "]")


def collective_lines(lineage: OutputLineage) -> tuple[str, ...]:
    """Return the collectives on the path to an output, from the output back."""
    sites = [
        f"  {site.op} over {', '.join(map(repr, site.mesh_axes))}{_place_text(site)}"
        for site in lineage.collectives
    ]
    if not sites:
        return ()
    return ("collectives on the path, from the output back:", *sites)


def _place_text(site: CollectiveSite) -> str:
    # JAX keeps no line of the user's for the backward pass of a custom_vjp that `check` computes.
    return f" at {site.source}" if site.source.line else " in a backward pass, line not known"
