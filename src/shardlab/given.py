"""What a person gives to `trace` and `check`, refused at once where it cannot be meant so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from shardlab.errors import BadType
from shardlab.layouts.mesh import Mesh


def check_given(
    command: str, args: Sequence[Any], keywords: Mapping[str, Any], options: Sequence[str]
) -> None:
    """Refuse a keyword that is no option, and anything but a function in the first place.

    >>> check_given("trace", (max, "f32[8]"), {"mesh": "data=4"}, ["mesh"])
    """
    for name in keywords:
        if name not in options:
            close = get_close_matches(name, options, n=1)
            hint = f", or did you mean {close[0]!r}?" if close else "."
            raise BadType(
                f"{command}() has no option {name!r}; its options are {', '.join(options)}.",
                where=f"{command}(..., {name}={keywords[name]!r:.60})",
                fix="give a keyword of the function itself with functools.partial"
                f"(f, {name}=...){hint}",
            )
    if args and not callable(args[0]):
        raise BadType(
            f"The first argument is {args[0]!r:.60}, and not a function.",
            where=f"{command}({args[0]!r:.60}, ...)",
            fix=f"give the function first and its arguments after it: {command}(f, 'f32[8,6]').",
        )


def meshes_given(mesh: Any, meshes: Any) -> list[Any]:
    """Return the meshes that are meant; a single one may stand in the place of several.

    >>> meshes_given(None, "data=2,model=4")
    ['data=2,model=4']
    """
    if mesh is not None and meshes is not None:
        raise BadType(
            "Both mesh and meshes were given.",
            where=f"check(..., mesh={mesh!r:.60}, meshes={meshes!r:.60})",
            fix="give mesh for one mesh, or meshes for all of them.",
        )
    if meshes is None:
        return [] if mesh is None else [mesh]
    # A jax.sharding.Mesh has a shape; a list of meshes has none.
    is_one = isinstance(meshes, (str, Mesh, Mapping)) or hasattr(meshes, "shape")
    return [meshes] if is_one else list(meshes)
