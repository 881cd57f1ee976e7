"""The state machine of `learn`, without a terminal: event -> new state and actions.

A save is judged on the examples, and a submission that passes them is judged on all cases at once:
a learner who sees green has solved the problem. A save during a judgement cancels that judgement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

ActionKind = Literal[
    "judge",  # value: run or submit
    "cancel",  # the judgement that is running
    "show",  # the judgement that has just arrived
    "examples_passed",  # all cases are judged next
    "solved",
    "task",
    "hint",
    "solution",
    "list",
    "help",
    "keys",
    "more",  # of a text that is longer than the screen
    "next",
    "open",  # value: a slug, or its number in the list
    "edit",
    "reset",
    "print",  # value: the text
    "prompt",  # value: the text typed so far
    "quit",
]


@dataclass(frozen=True)
class Action:
    """One thing to do on screen, disk or judge."""

    kind: ActionKind
    value: str = ""


@dataclass(frozen=True, kw_only=True)
class LearnSession:
    """The state of the loop."""

    judging: str = ""  # run or submit while a judgement is running
    armed_key: str = ""  # a key that takes effect when it is pressed a second time
    typed_name: str | None = None  # of a problem; None: keys are commands
    is_solved: bool = False


Step = tuple[LearnSession, tuple[Action, ...]]

_KEY_ACTIONS: dict[str, ActionKind] = {
    "h": "hint",
    "n": "next",
    "o": "solution",
    "t": "task",
    "e": "edit",
    "?": "help",
    " ": "more",
    "q": "quit",
}
_JUDGE_KEYS = {"r": "run", "s": "submit"}
_ENTER = ("\r", "\n")
_BACKSPACE = ("\x7f", "\b")
_ESCAPE, _CTRL_D = "\x1b", "\x04"


def on_save(session: LearnSession) -> Step:
    """Judge the file that was saved, and cancel the judgement of the older one."""
    return _judge(session, "run")


def on_unchanged_save(session: LearnSession) -> Step:
    """Explain why a save is not judged, unless its judgement is still running."""
    if session.judging:
        return session, ()
    return session, (Action("print", "Saved without a change. r judges it again."),)


def on_key(session: LearnSession, key: str) -> Step:
    """Return what a key does."""
    if session.typed_name is not None:
        return _type_key(session, key, session.typed_name)
    # Any other key disarms.
    armed_key, session = session.armed_key, replace(session, armed_key="")
    if key in _JUDGE_KEYS:
        return _judge(session, _JUDGE_KEYS[key])
    if key == "x":
        if armed_key == "x":
            return session, (Action("reset"),)
        question = "Press x again to restore the starter; your file is saved beside it."
        return replace(session, armed_key="x"), (Action("print", question),)
    if key == "l":
        return replace(session, typed_name=""), (Action("list"), Action("prompt"))
    # Escape ends only the typing of a name; Ctrl-D is the end of input, as in a shell.
    if key in (_ESCAPE, _CTRL_D):
        return session, (Action("quit"),) if key == _CTRL_D else ()
    if key in _KEY_ACTIONS:
        return session, (Action(_KEY_ACTIONS[key]),)
    if key in _ENTER or not key.isprintable():
        return session, (Action("keys"),)
    return session, (Action("print", f"Unknown key {key!r}; ? lists the keys."),)


def on_judgement(session: LearnSession, *, passed: bool) -> Step:
    """Show a judgement; after the examples pass, judge all cases."""
    kind, session = session.judging, replace(session, judging="")
    if not passed:
        return session, (Action("show"), Action("keys"))
    if kind == "run":
        actions = (Action("examples_passed"), Action("judge", "submit"))
        return replace(session, judging="submit"), actions
    return replace(session, is_solved=True), (Action("show"), Action("solved"))


def on_failure(session: LearnSession, message: str) -> Step:
    """Show why the judge could not judge, and go on."""
    return replace(session, judging=""), (Action("print", message), Action("keys"))


def on_open(session: LearnSession, *, is_solved: bool) -> Step:
    """Start over with another problem, and cancel the judgement of the last one."""
    actions = (Action("cancel"),) if session.judging else ()
    return LearnSession(is_solved=is_solved), actions


def _judge(session: LearnSession, kind: str) -> Step:
    actions = [Action("cancel")] if session.judging else []
    actions.append(Action("judge", kind))
    return replace(session, judging=kind), tuple(actions)


def _type_key(session: LearnSession, key: str, name: str) -> Step:
    """Add a key to the typed name or number of a problem; an empty one leaves the list."""
    if key in (_ESCAPE, _CTRL_D) or (key in _ENTER and not name):
        return replace(session, typed_name=None), (Action("keys"),)
    if key in _ENTER:
        return replace(session, typed_name=None), (Action("open", name),)
    if key == " " and not name:  # no name begins with it
        return session, (Action("more"), Action("prompt"))
    if key in _BACKSPACE:
        return replace(session, typed_name=name[:-1]), (Action("prompt", name[:-1]),)
    if key.isprintable():
        return replace(session, typed_name=name + key), (Action("prompt", name + key),)
    return session, ()
