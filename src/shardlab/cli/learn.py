"""`shardlab learn`: the course on one screen. Save your file, and see what the devices say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shardlab.course.workbook import Workbook
    from shardlab.sandbox.process import Level


@click.command("learn")
@click.argument("problem", required=False)
@click.option(
    "--catalogue",
    metavar="DIR",
    help="A catalogue of your own, in the place of shardlab's.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where your files go.  [default: that of the last one, or ./shardlab-practice]",
)
@click.option(
    "--level",
    type=click.Choice(["A", "B", "C"], case_sensitive=False),
    help="How far answers are confined. Without it: as far as this machine can.",
)
@click.option("--once", is_flag=True, help="Judge the current answer once, and end: for scripts.")
def command(
    problem: str | None,
    catalogue: str | None,
    folder: Path | None,
    level: Level | None,
    once: bool,
) -> None:
    """Solve the course problem by problem, in your own editor.

    The next problem is written to a file of yours and opened in $VISUAL or $EDITOR. Each time
    that you save it, it is judged on the examples, and where these pass, on all cases. Single keys
    give a hint, the list, the next problem; ? shows them. What you have done is there next time.

    \b
    shardlab learn                   go on where you were
    shardlab learn ring-attention    go to one problem
    shardlab learn --once            judge the current answer; exit code 0 when it is solved
    """
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    if once:
        click.get_current_context().exit(0 if _once(book, problem, level) else 1)
    from shardlab.cli.learn_loop import Lesson
    from shardlab.cli.learn_screen import Screen

    with Screen() as screen:
        lesson = Lesson(book, screen, folder or book.folder(), level)
        try:
            lesson.begin(problem)
            lesson.go_on()
        except KeyboardInterrupt:
            screen.say("")  # after the ^C
            lesson.leave()
        finally:
            lesson.close()
    sys.stdout.flush()


def _once(book: Workbook, name: str | None, level: Level | None) -> bool:
    """Judge the current answer as a save would; say whether the problem is solved."""
    from contextlib import closing

    from shardlab.cli.outputs import show_lines
    from shardlab.cli.problem_argument import chosen
    from shardlab.course.attempt import (
        explain_rejected_submission,
        judge_submission,
        record_submission,
    )
    from shardlab.course.solution_file import read_solution_file
    from shardlab.judge.judgement_text import judgement_lines

    problem = chosen(book, name)
    source = read_solution_file(book.path(problem.slug), problem.slug)
    refusal = explain_rejected_submission(book.record, problem, source, kind="run")
    if refusal is not None:
        show_lines(lambda width: judgement_lines(refusal, width))
        return False
    with closing(book.house(level)) as house:
        for kind in ("run", "submit"):
            submission = record_submission(book.record, problem, source, kind=kind)
            judgement = judge_submission(book.record, house, problem, submission)
            if not judgement.passed:
                break
    show_lines(lambda width: judgement_lines(judgement, width))
    return judgement.passed
