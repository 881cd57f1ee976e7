"""The learn loop without a terminal: what happens -> what to do. Pure, so that it is easy to test.

A save is judged on the examples, and an answer that passes them is submitted at once: a learner
who sees green has solved the problem. A save during a judging gives that judging up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

What = Literal[
    "judge",  # value: run or submit
    "give_up",  # the judging under way
    "show",  # the judgement that just came
    "pass_on",  # the examples passed, and all cases are judged now
    "solved",
    "task",
    "hint",
    "solution",
    "list",
    "help",
    "keys",
    "next",
    "open",  # value: a slug, or its number in the list
    "edit",
    "reset",
    "say",  # value: the words
    "echo",  # value: what is typed so far
    "quit",
]


@dataclass(frozen=True)
class Do:
    """One thing to do."""

    what: What
    value: str = ""


@dataclass(frozen=True, kw_only=True)
class LearnSession:
    """Where the loop stands."""

    judging: str = ""  # run or submit while one is under way
    armed: str = ""  # a key that takes effect when it is pressed again
    typed: str | None = None  # of a problem's name; None: keys are commands
    is_solved: bool = False


Step = tuple[LearnSession, tuple[Do, ...]]

_PLAIN: dict[str, What] = {
    "h": "hint",
    "n": "next",
    "o": "solution",
    "t": "task",
    "e": "edit",
    "?": "help",
    "q": "quit",
}
_JUDGED = {"r": "run", "s": "submit"}
_ENDS = ("\r", "\n")
_ERASES = ("\x7f", "\b")
_LEAVES = ("\x1b", "\x04")


def saved(session: LearnSession) -> Step:
    """The file has been saved: judge it, and give up what is being judged of the old one."""
    return _judge(session, "run")


def key(session: LearnSession, pressed: str) -> Step:
    """A key was pressed."""
    if session.typed is not None:
        return _typing(session, pressed, session.typed)
    armed, session = session.armed, replace(session, armed="")
    if pressed in _JUDGED:
        return _judge(session, _JUDGED[pressed])
    if pressed == "x":
        if armed == "x":
            return session, (Do("reset"),)
        return replace(session, armed="x"), (
            Do("say", "x again puts the starter back and keeps your file beside it."),
        )
    if pressed == "l":
        return replace(session, typed=""), (Do("list"), Do("echo"))
    if pressed in _LEAVES:
        return session, (Do("quit"),) if pressed == "\x04" else ()
    if pressed in _PLAIN:
        return session, (Do(_PLAIN[pressed]),)
    if pressed in _ENDS or not pressed.isprintable():
        return session, (Do("keys"),)
    return session, (Do("say", f"{pressed!r} is no key here; ? shows them."),)


def judged(session: LearnSession, *, passed: bool) -> Step:
    """A judging came to its end."""
    kind, session = session.judging, replace(session, judging="")
    if not passed:
        return session, (Do("show"), Do("keys"))
    if kind == "run":
        return replace(session, judging="submit"), (Do("pass_on"), Do("judge", "submit"))
    return replace(session, is_solved=True), (Do("show"), Do("solved"))


def failed(session: LearnSession, words: str) -> Step:
    """A judging could not be done."""
    return replace(session, judging=""), (Do("say", words), Do("keys"))


def opened(session: LearnSession, *, is_solved: bool) -> Step:
    """Another problem was opened; what was being judged is of no interest any more."""
    todo = (Do("give_up"),) if session.judging else ()
    return LearnSession(is_solved=is_solved), todo


def _judge(session: LearnSession, kind: str) -> Step:
    todo = (Do("give_up"), Do("judge", kind)) if session.judging else (Do("judge", kind),)
    return replace(session, judging=kind), todo


def _typing(session: LearnSession, pressed: str, typed: str) -> Step:
    """Take a key of a problem's name or number; an empty one leaves the list."""
    if pressed in _LEAVES or (pressed in _ENDS and not typed):
        return replace(session, typed=None), (Do("keys"),)
    if pressed in _ENDS:
        return replace(session, typed=None), (Do("open", typed),)
    if pressed in _ERASES:
        return replace(session, typed=typed[:-1]), (Do("echo", typed[:-1]),)
    if pressed.isprintable():
        return replace(session, typed=typed + pressed), (Do("echo", typed + pressed),)
    return session, ()
