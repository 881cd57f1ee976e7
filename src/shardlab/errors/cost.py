"""Hardware and figures that an estimate cannot use."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class CostError(LabError, ValueError):
    """A question about time that the figures at hand cannot answer."""

    code = "cost"


class UnknownHardware(CostError):
    """A name of hardware that is not in the table."""

    code = "cost.unknown_hardware"


class BadHardware(CostError):
    """A hardware file, or a figure given, that cannot be used."""

    code = "cost.bad_hardware"


class UnknownFigure(CostError):
    """A figure that an estimate needs and nobody publishes."""

    code = "cost.unknown_figure"


class BadEfficiency(CostError):
    """An efficiency that is not a share of the peak."""

    code = "cost.bad_efficiency"
