"""How collectives are shown: color, letter for plain text, HLO name."""

from __future__ import annotations

from shardlab.render.palette import fill_color

# The names in HLO text and in profilers.
HLO_NAMES = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "collective-broadcast",
}


# operation -> hue of the palette, letter
_STYLES = {
    "psum": (4, "P"),
    "all_gather": (0, "G"),
    "psum_scatter": (2, "S"),
    "all_to_all": (6, "A"),
    "ppermute": (1, "E"),
    "pmax": (5, "M"),
    "pmin": (3, "N"),
}


_RARE_STYLE = (7, "O")


def op_text(op: str) -> str:
    """Return the JAX name with the HLO name.

    >>> op_text("psum")
    'psum (all-reduce)'
    """
    return f"{op} ({HLO_NAMES[op]})" if op in HLO_NAMES else op


def op_fill(op: str) -> str:
    """Return the color of an operation."""
    return fill_color(_STYLES.get(op, _RARE_STYLE)[0])


def op_letter(op: str) -> str:
    """Return the letter of an operation; rare ones share one."""
    return _STYLES.get(op, _RARE_STYLE)[1]
