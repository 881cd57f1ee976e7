"""The learn loop, without a terminal: what happens -> what to do."""

from __future__ import annotations

import pytest

from shardlab.course.learn_session import Do, LearnSession, failed, judged, key, opened, saved


def typed(session, keys):
    done = []
    for each in keys:
        session, todo = key(session, each)
        done += todo
    return session, done


def test_a_save_is_judged_on_the_examples():
    session, todo = saved(LearnSession())
    assert (session.judging, todo) == ("run", (Do("judge", "run"),))


def test_a_save_during_a_judging_gives_that_up_and_judges_the_new_one():
    session, todo = saved(LearnSession(judging="submit"))
    assert (session.judging, todo) == ("run", (Do("give_up"), Do("judge", "run")))


def test_an_answer_that_passes_the_examples_is_submitted_at_once():
    session, todo = judged(LearnSession(judging="run"), passed=True)
    assert (session.judging, todo) == ("submit", (Do("pass_on"), Do("judge", "submit")))
    session, todo = judged(session, passed=True)
    assert (session.is_solved, session.judging) == (True, "")
    assert todo == (Do("show"), Do("solved"))


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_an_answer_that_fails_is_shown_and_waited_for(kind):
    session, todo = judged(LearnSession(judging=kind), passed=False)
    assert session == LearnSession()
    assert todo == (Do("show"), Do("keys"))


def test_a_judging_that_fails_says_why_and_the_loop_goes_on():
    session, todo = failed(LearnSession(judging="run"), "The disk is full.")
    assert session == LearnSession()
    assert todo == (Do("say", "The disk is full."), Do("keys"))


def test_another_problem_gives_up_what_was_judged():
    before = LearnSession(judging="run", armed="x", typed="tw")
    session, todo = opened(before, is_solved=True)
    assert session == LearnSession(is_solved=True)
    assert todo == (Do("give_up"),)
    assert opened(LearnSession(), is_solved=False) == (LearnSession(), ())


@pytest.mark.parametrize(
    ("pressed", "what"),
    [
        ("h", "hint"),
        ("n", "next"),
        ("o", "solution"),
        ("t", "task"),
        ("e", "edit"),
        ("?", "help"),
        ("q", "quit"),
        ("\x04", "quit"),
        ("\n", "keys"),
    ],
)
def test_a_key_does_one_thing(pressed, what):
    assert key(LearnSession(), pressed) == (LearnSession(), (Do(what),))


def test_run_and_submit_have_keys():
    assert key(LearnSession(), "r")[1] == (Do("judge", "run"),)
    assert key(LearnSession(judging="run"), "s")[1] == (Do("give_up"), Do("judge", "submit"))


def test_a_reset_takes_two_presses_in_a_row():
    session, (said,) = key(LearnSession(), "x")
    assert said.what == "say"
    assert key(session, "x") == (LearnSession(), (Do("reset"),))
    session, done = typed(LearnSession(), "xhx")
    assert Do("reset") not in done
    assert session.armed == "x"


def test_a_problem_is_chosen_from_the_list_by_typing():
    session, done = typed(LearnSession(), "l1q\x7f2\n")
    assert session == LearnSession()
    assert done == [
        Do("list"),
        Do("echo"),
        Do("echo", "1"),
        Do("echo", "1q"),
        Do("echo", "1"),
        Do("echo", "12"),
        Do("open", "12"),
    ]


@pytest.mark.parametrize("leaves", ["\n", "ab\x1b", "ab\x7f\x7f\r", "\x04"])
def test_the_list_is_left_without_a_choice(leaves):
    session, done = typed(LearnSession(), "l" + leaves)
    assert session == LearnSession()
    assert done[-1] == Do("keys")


def test_a_key_that_means_nothing_is_named():
    assert key(LearnSession(), "z")[1] == (Do("say", "'z' is no key here; ? shows them."),)
    assert key(LearnSession(), "\x1b") == (LearnSession(), ())
