"""How the store names a teacher's catalogue, as `PersonPracticeStore` takes it.

The version is no part of it: progress and history go on with a new version. The server's own
catalogue has an empty key, or the absolute path of its folder.
"""

from __future__ import annotations

UPLOADED_PREFIX = "catalogue:"


def catalogue_key(catalogue_id: int) -> str:
    """Return the key of a teacher's catalogue."""
    return f"{UPLOADED_PREFIX}{catalogue_id}"


def is_uploaded_key(key: str) -> bool:
    """Return whether a key is that of a teacher's catalogue."""
    return key.startswith(UPLOADED_PREFIX)


def uploaded_id(key: str) -> int:
    """Return the catalogue of a key."""
    return int(key.removeprefix(UPLOADED_PREFIX))


def column_name(key: str, slug: str) -> str:
    """Return the name of a problem among those of several catalogues.

    >>> column_name("", "shard-map-psum"), column_name("catalogue:3", "shard-map-psum")
    ('shard-map-psum', '3/shard-map-psum')
    """
    return f"{uploaded_id(key)}/{slug}" if is_uploaded_key(key) else slug
