"""What a guest says beside numbers, held to its shape: text to show, never a fact to rely on."""

from __future__ import annotations

from typing import Any

from shardlab.sandbox.frame import Frame, InvalidFrame

_MAX_TEXT = 100_000
_MAX_ITEMS = 1000


def checked(answer: Frame) -> Frame:
    """Return an answer whose error, findings and counts have the shape that they must have.

    >>> checked(Frame({"findings": [{"severity": "error"}]}))
    Traceback (most recent call last):
    shardlab.sandbox.frame.InvalidFrame: a finding lacks its 'code'
    """
    header = answer.header
    if "error" in header:
        _check_error(header["error"])
    if "findings" in header:
        _check_list(header["findings"], "findings")
        for each in header["findings"]:
            _check_finding(each)
    for name in ("n_shard_maps", "n_unchecked", "eager_bytes"):
        if type(header.get(name, 0)) is not int or not 0 <= header.get(name, 0) < 1 << 62:
            raise InvalidFrame(f"{name!r} is not a number")
    return answer


def _check_error(error: Any) -> None:
    if not isinstance(error, dict):
        raise InvalidFrame("the error is no exception")
    for name in ("kind", "words", "family", "fix", "what"):
        _check_text(error.get(name, ""), f"the error's {name!r}")
    _check_line(error.get("line"))
    _check_list(error.get("parents", []), "the error's parents")


def _check_finding(each: Any) -> None:
    if not isinstance(each, dict):
        raise InvalidFrame("a finding is none")
    for name in ("code", "severity", "what", "fix"):
        if name not in each:
            raise InvalidFrame(f"a finding lacks its {name!r}")
        _check_text(each[name], f"a finding's {name!r}")
    if each["code"] == "jax.rejected" and "cause" not in each:
        raise InvalidFrame("a finding lacks its 'cause'")
    if "where" not in each or not isinstance(each["where"], dict | None):
        raise InvalidFrame("a finding lacks its place")
    _check_line((each["where"] or {}).get("line"))
    if "shows" not in each:
        raise InvalidFrame("a finding lacks what it shows")
    _check_list(each["shows"], "what a finding shows")
    for line in each["shows"]:
        _check_text(line, "what a finding shows")


def _check_text(text: Any, name: str) -> None:
    if not (text is None or isinstance(text, str)) or len(text or "") > _MAX_TEXT:
        raise InvalidFrame(f"{name} is no text, or too long a one")


def _check_line(line: Any) -> None:
    if not (line is None or (type(line) is int and 0 <= line < 1 << 31)):
        raise InvalidFrame("a line is no number")


def _check_list(items: Any, name: str) -> None:
    if not isinstance(items, list) or len(items) > _MAX_ITEMS:
        raise InvalidFrame(f"{name}: not a list, or too long a one")
