"""The written programs: small, each named after the one thing that it tests."""

from __future__ import annotations

from written import (
    callbacks,
    collectives,
    control,
    dtypes,
    local,
    meshes,
    models,
    rejections,
    transforms,
)

PROGRAMS = {
    name: program
    for module in (
        collectives,
        dtypes,
        control,
        callbacks,
        transforms,
        meshes,
        local,
        models,
        rejections,
    )
    for name, program in module.program.programs.items()
}
