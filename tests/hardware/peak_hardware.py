"""Hardware at its peak: the figures of a data sheet, without what programs reach of them."""

from __future__ import annotations

from dataclasses import replace

from shardlab.hardware.chip_file import FIGURE_UNITS
from shardlab.hardware.chips import Hardware, parse_hardware

PUBLISHED_LATENCY = "hop_latency"


def peak_hardware(name: str) -> Hardware:
    chip = parse_hardware(name)
    figures = {
        name: figure
        for name, figure in chip.figures.items()
        if name == PUBLISHED_LATENCY or FIGURE_UNITS[name] not in ("fraction", "seconds")
    }
    return replace(chip, figures=figures, matmul_tile=1, nccl=None)
