"""A bug is a change of a few words in a right program, and the causes that describe it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """Replaces `old` by `new` in the source of a program.

    `causes` are the causes that a finding may name; any other is a wrong cause. Without one the
    right finding has no cause. `needs_reference` marks a bug that is the same on every mesh, which
    only a comparison with a reference shows. The finding has the code `code`; it is a warning for a
    bug that wastes memory and changes no value.
    """

    name: str
    old: str
    new: str
    code: str = "hazard.mesh_dependent"
    causes: tuple[str, ...] = ()
    needs_reference: bool = False
    also: tuple[tuple[str, str], ...] = ()  # further replacements

    def apply(self, source: str) -> str:
        """Return the source with the bug; every replaced text occurs exactly once."""
        for old, new in ((self.old, self.new), *self.also):
            assert source.count(old) == 1, (self.name, old, source.count(old))
            source = source.replace(old, new)
        return source
