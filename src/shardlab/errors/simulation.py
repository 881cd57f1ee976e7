"""Programs that cannot be simulated as they stand."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class SimulationError(LabError, RuntimeError):
    """A program that cannot be simulated as it stands."""

    code = "simulate"


class CannotSimulate(SimulationError, NotImplementedError):
    """A primitive that communicates in a way shardlab does not know."""

    code = "simulate.unknown_primitive"


class UnboundAxis(SimulationError, NameError):
    """A collective over a mesh axis that the mesh does not have."""

    code = "simulate.unbound_axis"


class DuplicatePermutation(SimulationError, ValueError):
    """A ppermute with a device twice among its sources or destinations."""

    code = "simulate.duplicate_permutation"


class PermutationRange(SimulationError, IndexError):
    """A ppermute that names a device beyond the last one of its mesh axes."""

    code = "simulate.permutation_range"


class PermutationOrder(SimulationError):
    """A ppermute over mesh axes in another order than the mesh, where JAX refuses it."""

    code = "simulate.permutation_order"


class ManualAxisConstraint(SimulationError, ValueError):
    """A sharding constraint over an axis that is manual at that place."""

    code = "simulate.manual_axis"


class Deadlock(SimulationError):
    """Devices that part ways before a collective that needs them all."""

    code = "simulate.deadlock"


class Unsupported(SimulationError, NotImplementedError):
    """A feature of JAX that simulated mode does not take over."""

    code = "simulate.unsupported"


class NotMeasured(SimulationError):
    """A figure of a compiled program, asked of one that was only simulated."""

    code = "simulate.not_measured"


class BadDeviceCount(SimulationError, ValueError):
    """A number of devices that no machine can have."""

    code = "simulate.device_count"


class NotSharded(SimulationError, TypeError):
    """Something other than an array where the shards of an array were asked for."""

    code = "simulate.not_an_array"
