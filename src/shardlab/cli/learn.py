"""`shardlab learn`: the course on one screen. Save your solution file to have it judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_folder
from shardlab.cli.options import catalogue_option, level_option, problem_argument

if TYPE_CHECKING:
    from shardlab.course.workbook import Workbook
    from shardlab.sandbox.process import Level


@click.command("learn")
@problem_argument
@catalogue_option
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    shell_complete=complete_folder,
    help="Folder of your solution files.  [default: that of the last one, or ./shardlab-practice]",
)
@level_option
@click.option("--once", is_flag=True, help="Judge the current solution file once, and exit.")
def command(
    problem: str | None,
    catalogue: str | None,
    folder: Path | None,
    level: Level | None,
    once: bool,
) -> None:
    """Solve the course problem by problem, in your own editor.

    The starter of the next problem is written to a solution file and opened in $VISUAL or $EDITOR.
    Each time you save it, it is judged on the examples, and if these pass, on all cases. Single
    keys show a hint, the list, the next problem; ? lists them. Your progress is saved.

    \b
    shardlab learn                   continue where you were
    shardlab learn ring-attention    go to one problem
    shardlab learn --once            judge the current solution; exit code 0 if it is solved
    """
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    if once:
        click.get_current_context().exit(0 if _judge_once(workbook, problem, level) else 1)
    from shardlab.cli.learn_loop import LearnLoop
    from shardlab.cli.learn_screen import Screen

    with Screen() as screen:
        loop = LearnLoop(workbook, screen, folder or workbook.latest_folder(), level)
        try:
            loop.open_first(problem)
            loop.run()
        except KeyboardInterrupt:
            screen.print_text("")  # the terminal has echoed ^C
            loop.say_goodbye()
        finally:
            loop.close()
    sys.stdout.flush()


def _judge_once(workbook: Workbook, name: str | None, level: Level | None) -> bool:
    """Judge the current solution file as a save would; return whether the problem is solved."""
    from contextlib import closing

    from shardlab.cli.outputs import show_lines
    from shardlab.cli.practice import choose_problem
    from shardlab.course.attempt import (
        explain_rejected_submission,
        judge_submission,
        record_submission,
    )
    from shardlab.course.solution_file import read_solution_file
    from shardlab.judge.judgement_text import judgement_lines

    problem = choose_problem(workbook, name)
    source = read_solution_file(workbook.solution_path(problem.slug), problem.slug)
    rejection = explain_rejected_submission(workbook.store, problem, source, kind="run")
    if rejection is not None:
        show_lines(lambda width: judgement_lines(rejection, width))
        return False
    with closing(workbook.open_sandboxes(level)) as pool:
        # The same two steps as a save in the loop.
        for kind in ("run", "submit"):
            submission = record_submission(workbook.store, problem, source, kind=kind)
            judgement = judge_submission(workbook.store, pool, problem, submission, source=source)
            if not judgement.passed:
                break
    show_lines(lambda width: judgement_lines(judgement, width))
    return judgement.passed
