"""The written programs: small, named, each different from the others in one thing."""

from __future__ import annotations

from written import (
    callbacks,
    collectives,
    control,
    dtypes,
    local,
    meshes,
    models,
    refusals,
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
        refusals,
    )
    for name, program in module.program.programs.items()
}
