"""The state machine of `learn`, without a terminal: event -> actions."""

from __future__ import annotations

import pytest

from shardlab.course.learn_session import (
    Action,
    LearnSession,
    on_failure,
    on_judgement,
    on_key,
    on_open,
    on_save,
    on_unchanged_save,
)


def type_keys(session, keys):
    actions = []
    for key in keys:
        session, new_actions = on_key(session, key)
        actions += new_actions
    return session, actions


def test_a_save_is_judged_on_the_examples():
    session, actions = on_save(LearnSession())
    assert (session.judging, actions) == ("run", (Action("judge", "run"),))


def test_a_save_during_a_judgement_cancels_it_and_judges_the_new_file():
    session, actions = on_save(LearnSession(judging="submit"))
    assert (session.judging, actions) == ("run", (Action("cancel"), Action("judge", "run")))


def test_a_save_without_a_change_is_explained_unless_a_judgement_runs():
    _, actions = on_unchanged_save(LearnSession())
    assert actions == (Action("print", "Saved without a change. r judges it again."),)
    assert on_unchanged_save(LearnSession(judging="run"))[1] == ()


def test_a_submission_that_passes_the_examples_is_judged_on_all_cases():
    session, actions = on_judgement(LearnSession(judging="run"), passed=True)
    assert (session.judging, actions) == (
        "submit",
        (Action("examples_passed"), Action("judge", "submit")),
    )
    session, actions = on_judgement(session, passed=True)
    assert (session.is_solved, session.judging) == (True, "")
    assert actions == (Action("show"), Action("solved"))


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_a_failure_is_shown(kind):
    session, actions = on_judgement(LearnSession(judging=kind), passed=False)
    assert session == LearnSession()
    assert actions == (Action("show"), Action("keys"))


def test_a_failure_of_the_judge_is_shown_and_the_loop_continues():
    session, actions = on_failure(LearnSession(judging="run"), "The disk is full.")
    assert session == LearnSession()
    assert actions == (Action("print", "The disk is full."), Action("keys"))


def test_opening_another_problem_cancels_the_judgement():
    before = LearnSession(judging="run", armed_key="x", typed_name="tw")
    session, actions = on_open(before, is_solved=True)
    assert session == LearnSession(is_solved=True)
    assert actions == (Action("cancel"),)
    assert on_open(LearnSession(), is_solved=False) == (LearnSession(), ())


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("h", "hint"),
        ("n", "next"),
        ("o", "solution"),
        ("t", "task"),
        ("e", "edit"),
        ("?", "help"),
        (" ", "more"),
        ("q", "quit"),
        ("\x04", "quit"),
        ("\n", "keys"),
    ],
)
def test_a_key_does_one_thing(key, kind):
    assert on_key(LearnSession(), key) == (LearnSession(), (Action(kind),))


def test_run_and_submit_have_keys():
    assert on_key(LearnSession(), "r")[1] == (Action("judge", "run"),)
    assert on_key(LearnSession(judging="run"), "s")[1] == (
        Action("cancel"),
        Action("judge", "submit"),
    )


def test_a_reset_takes_two_presses_in_a_row():
    session, (action,) = on_key(LearnSession(), "x")
    assert action.kind == "print"
    assert on_key(session, "x") == (LearnSession(), (Action("reset"),))
    session, actions = type_keys(LearnSession(), "xhx")
    assert Action("reset") not in actions
    assert session.armed_key == "x"


def test_a_problem_is_selected_from_the_list_by_typing():
    session, actions = type_keys(LearnSession(), "l1q\x7f2\n")
    assert session == LearnSession()
    assert actions == [
        Action("list"),
        Action("prompt"),
        Action("prompt", "1"),
        Action("prompt", "1q"),
        Action("prompt", "1"),
        Action("prompt", "12"),
        Action("open", "12"),
    ]


def test_space_shows_more_of_a_list_that_is_longer_than_the_screen():
    session, actions = type_keys(LearnSession(), "l ")
    assert session == LearnSession(typed_name="")
    assert actions[-2:] == [Action("more"), Action("prompt")]
    assert type_keys(LearnSession(), "lwho owns")[0].typed_name == "who owns"


@pytest.mark.parametrize("keys", ["\n", "ab\x1b", "ab\x7f\x7f\r", "\x04"])
def test_the_list_is_left_without_a_selection(keys):
    session, actions = type_keys(LearnSession(), "l" + keys)
    assert session == LearnSession()
    assert actions[-1] == Action("keys")


def test_an_unknown_key_is_reported():
    assert on_key(LearnSession(), "z")[1] == (
        Action("print", "Unknown key 'z'; ? lists the keys."),
    )
    assert on_key(LearnSession(), "\x1b") == (LearnSession(), ())
