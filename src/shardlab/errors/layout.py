"""Layouts that JAX would refuse too."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class LayoutError(LabError, ValueError):
    """A layout that JAX would refuse too."""

    code = "layout"


class BadText(LayoutError):
    """Text that is not a mesh, spec, shape or dtype; `where` points at the place with `^^^`."""

    code = "layout.bad_text"


class BadType(LayoutError, TypeError):
    """A Python object that cannot be read as the thing asked for."""

    code = "layout.bad_type"


class BadSize(LayoutError):
    """A size that no array or mesh can have: zero, negative, or beyond counting."""

    code = "layout.bad_size"


class UnknownDtype(LayoutError):
    """A dtype name that JAX does not have."""

    code = "layout.unknown_dtype"


class UnknownDevice(LayoutError):
    """A device id or coordinate outside the mesh."""

    code = "layout.unknown_device"


class MeshAxisRepeated(LayoutError):
    """A mesh with the same axis name (or the same device) twice."""

    code = "layout.mesh_axis_repeated"


class UnknownMeshAxis(LayoutError):
    """A spec that names a mesh axis the mesh does not have."""

    code = "layout.unknown_axis"


class MeshAxisUsedTwice(LayoutError):
    """A spec that uses one mesh axis in two places."""

    code = "layout.axis_used_twice"


class SpecTooLong(LayoutError):
    """A spec with more entries than the array has axes."""

    code = "layout.spec_too_long"


class IndivisibleAxis(LayoutError):
    """An array axis whose size its number of shards does not divide."""

    code = "layout.indivisible"


class UnreducedNotAllowed(LayoutError):
    """An `unreduced` or `reduced` mesh axis where JAX does not allow one."""

    code = "layout.unreduced"


class TooManyDevices(LayoutError):
    """A list of every device, asked of a mesh too large to list."""

    code = "layout.too_many_devices"


class LayoutMismatch(LayoutError):
    """Two layouts that are not of the same array on the same mesh."""

    code = "layout.mismatch"
