"""The written programs: small, named, each different from the others in one thing."""

from __future__ import annotations

from written import collectives

PROGRAMS = {name: p for module in (collectives,) for name, p in module.program.programs.items()}
