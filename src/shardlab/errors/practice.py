"""A person's record of practice that cannot be kept, and answers that cannot be found."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class StoreError(LabError):
    """The record of submissions and progress cannot be read or written."""

    code = "store"


class StoreUnwritable(StoreError):
    """A data folder or record that may not be written, or a disk that fails."""

    code = "store.unwritable"


class StoreFull(StoreError):
    """A disk with no room for what should be kept."""

    code = "store.full"


class StoreBusy(StoreError):
    """A record that another process does not let go of."""

    code = "store.busy"


class StoreDamaged(StoreError):
    """A record that is not what SQLite wrote; it is kept beside, never deleted."""

    code = "store.damaged"


class StoreNewer(StoreError):
    """A record written by a newer shardlab."""

    code = "store.newer"


class PracticeError(LabError):
    """Something asked of an exercise that cannot be done."""

    code = "practice"


class NoAnswer(PracticeError):
    """An answer to judge that is not there, or is no file."""

    code = "practice.no_answer"


class AnswerExists(PracticeError):
    """A file of the person's own in the place where a starter should go."""

    code = "practice.answer_exists"


class FolderUnwritable(PracticeError):
    """A folder for answers, or for an export of them, that may not be written."""

    code = "practice.folder"


class NoSuchSubmission(PracticeError):
    """A submission number, or a case, that the record does not have."""

    code = "practice.no_submission"


class NoTerminal(PracticeError):
    """`shardlab learn` without a terminal to read keys from."""

    code = "practice.no_terminal"
