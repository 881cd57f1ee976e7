"""Problems, and catalogues of them, that cannot be read or written."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class CatalogueError(LabError, ValueError):
    """A catalogue of problems that cannot be used as it stands."""

    code = "catalogue"


class NoCatalogue(CatalogueError):
    """A folder that is not a catalogue: it has no `tracks.toml`."""

    code = "catalogue.not_found"


class BadTracks(CatalogueError):
    """A `tracks.toml` that is not understood, or that does not fit the folders beside it."""

    code = "catalogue.bad_tracks"


class BadProblem(CatalogueError):
    """A `problem.toml` that is not understood, or a file of a problem that is missing."""

    code = "catalogue.bad_problem"


class BadReference(CatalogueError):
    """A `reference.py` that cannot be loaded, or lacks a function."""

    code = "catalogue.bad_reference"


class UnknownProblem(CatalogueError):
    """A problem or a track that the catalogue does not have."""

    code = "catalogue.unknown_problem"


class ProblemExists(CatalogueError):
    """A new problem whose folder is there already."""

    code = "catalogue.exists"


class BadName(CatalogueError):
    """A name for a new problem or track that cannot be one."""

    code = "catalogue.bad_name"
