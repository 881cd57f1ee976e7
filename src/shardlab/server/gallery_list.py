"""The gallery of recorded programs as the pages and the API list it."""

from __future__ import annotations

from functools import cache

from shardlab.server.api.api_models import GalleryItem


@cache
def gallery_items() -> tuple[GalleryItem, ...]:
    """Return the programs of the gallery, patterns first."""
    from shardlab.recording.example_gallery import gallery_programs

    return tuple(
        GalleryItem(
            slug=program.slug,
            title=program.title,
            summary=program.summary,
            kind=program.kind,
            source=program.source,
            mesh=program.mesh,
            target=program.target or None,
        )
        for program in gallery_programs()
    )
