"""`shardlab practice run` and `submit`: one engine, and where its judgement goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardlab.cli.problem_argument import chosen

if TYPE_CHECKING:
    from shardlab.catalogue.problem import Problem
    from shardlab.course.submission import Submission
    from shardlab.course.workbook import Workbook
    from shardlab.judge.judgement import Judgement
    from shardlab.sandbox.process import Level

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("problem", required=False),
    click.argument("file", required=False, type=click.Path(path_type=Path)),
    click.option(
        "--catalogue",
        metavar="DIR",
        help="A catalogue of your own, in the place of shardlab's.",
    ),
    click.option(
        "--json",
        "json_to",
        metavar="FILE",
        help="Write results.json to FILE; - writes it to the terminal, and nothing else.",
    ),
    click.option("--junit", "junit_to", metavar="FILE", help="Write JUnit XML to FILE."),
    click.option("--exit-status", is_flag=True, help="Exit with 1 where not everything passed."),
    click.option(
        "--seed", type=click.IntRange(0, 2**63 - 1), help="What the inputs are drawn from."
    ),
    click.option(
        "--case", metavar="NAME", help="Judge this case alone, to look at it. It is not kept."
    ),
    click.option(
        "--level",
        type=click.Choice(["A", "B", "C"], case_sensitive=False),
        help="How far the answer is confined. Without it: as far as this machine can.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The options of a judging."""

    problem: str | None
    file: Path | None
    catalogue: str | None
    json_to: str | None
    junit_to: str | None
    exit_status: bool
    seed: int | None
    case: str | None
    level: Level | None
    quiet: bool


def _options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_options
def run(**options: Any) -> None:
    """Judge your answer on the examples: small inputs that you are shown.

    \b
    shardlab practice run                     the problem that you started last
    shardlab practice run shard-map-psum
    shardlab practice run shard-map-psum my_answer.py

    Exit code 0 when judged, whatever the verdict; with --exit-status 1 unless all passed.
    """
    _judge(_Wanted(**options), "run")


@click.command()
@_options
@click.option(
    "--again", type=int, metavar="N", help="Judge submission N as it was handed in, once more."
)
def submit(again: int | None, **options: Any) -> None:
    """Judge your answer on all cases, and keep it.

    \b
    shardlab practice submit shard-map-psum
    shardlab practice submit shard-map-psum --seed 7 --case "data=4"    look at one case
    shardlab practice submit --again 12       one whose judging was interrupted

    Exit code 0 when judged, whatever the verdict; with --exit-status 1 unless all passed.
    """
    _judge(_Wanted(**options), "submit", again)


def _judge(wanted: _Wanted, kind: str, again: int | None = None) -> None:
    from shardlab.cli.outputs import check_places
    from shardlab.course.workbook import open_workbook

    check_places(json=wanted.json_to, junit=wanted.junit_to)
    book = open_workbook(wanted.catalogue)
    if again is not None:
        judgement = _judged(book, wanted, book.record.submission(again))
    else:
        problem = chosen(book, wanted.problem, quiet=wanted.quiet)
        source = _source(book, wanted, problem)
        if wanted.case is not None:
            judgement = _one_case(book, wanted, problem, source, kind, wanted.case)
        else:
            judgement = _handed_in(book, wanted, problem, source, kind)
    _write(judgement, wanted)
    if kind == "submit" and judgement.passed and wanted.case is None and not wanted.quiet:
        _go_on(book, judgement.problem, wanted.catalogue)
    click.get_current_context().exit(int(wanted.exit_status and not judgement.passed))


def _go_on(book: Workbook, solved: str, catalogue: str | None) -> None:
    from shardlab.course.progress import next_problem

    coming = next_problem(book.catalogue, book.record.progress(), solved)
    where = f" --catalogue {catalogue}" if catalogue else ""
    then = f"Next: `shardlab practice start {coming}{where}`" if coming else "All are solved."
    click.echo(f"Solved. {then}", err=True)


def _source(book: Workbook, wanted: _Wanted, problem: Problem) -> bytes:
    from shardlab.course.solution_file import read_solution_file

    if wanted.file is not None:
        return read_solution_file(wanted.file, problem.slug)
    if wanted.problem and wanted.problem.endswith(".py"):
        return read_solution_file(Path(wanted.problem), problem.slug)
    return read_solution_file(book.path(problem.slug), problem.slug)


def _handed_in(
    book: Workbook, wanted: _Wanted, problem: Problem, source: bytes, kind: str
) -> Judgement:
    from shardlab.course.attempt import explain_rejected_submission, record_submission

    refusal = explain_rejected_submission(book.record, problem, source, kind=kind, seed=wanted.seed)
    if refusal is not None:
        return refusal
    kept = record_submission(book.record, problem, source, kind=kind, seed=wanted.seed)
    return _judged(book, wanted, kept)


def _judged(book: Workbook, wanted: _Wanted, submission: Submission) -> Judgement:
    from shardlab.cli.worker_options import progress
    from shardlab.course.attempt import judge_submission

    problem = book.problem(submission.problem)
    try:
        with progress(quiet=wanted.quiet) as tell, closing(book.house(wanted.level)) as house:
            return judge_submission(
                book.record,
                house,
                problem,
                submission,
                tell=lambda case: tell(f"{problem.slug}: {case.name}"),
            )
    except KeyboardInterrupt:
        click.echo(
            "interrupted; the answer is kept: "
            f"`shardlab practice submit --again {submission.number}` judges it",
            err=True,
        )
        raise click.exceptions.Exit(130) from None


def _one_case(
    book: Workbook, wanted: _Wanted, problem: Problem, source: bytes, kind: str, case: str
) -> Judgement:
    from shardlab.course.attempt import replay_case

    seed = wanted.seed or 0
    with closing(book.house(wanted.level)) as house:
        return replay_case(house, problem, source, kind=kind, seed=seed, case=case)


def _write(judgement: Judgement, wanted: _Wanted) -> None:
    from shardlab.cli.outputs import json_text, show_lines, write_all
    from shardlab.judge.judgement_text import judgement_lines
    from shardlab.judge.junit import junit_xml
    from shardlab.judge.results_json import results_json

    outputs = {
        "--json": (wanted.json_to, lambda: json_text(results_json(judgement))),
        "--junit": (wanted.junit_to, lambda: junit_xml(judgement)),
    }
    if not write_all(outputs):
        show_lines(lambda width: judgement_lines(judgement, width))
