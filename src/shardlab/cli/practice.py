"""`shardlab practice`: exercises, one command at a time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import complete_folder, complete_path
from shardlab.cli.options import (
    add_options,
    catalogue_option,
    json_option,
    level_option,
    output_option,
    problem_argument,
    quiet_option,
)

if TYPE_CHECKING:
    from shardlab.catalogue.problem import Problem
    from shardlab.course.store import Submission
    from shardlab.course.workbook import Hint, Workbook
    from shardlab.judge.judgement import Judgement
    from shardlab.sandbox.process import Level

_folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    shell_complete=complete_folder,
    help="Folder of your solution file.  [default: ./shardlab-practice]",
)


@click.group("practice")
def command() -> None:
    """Solve problems, judged on many devices.

    PROBLEM is a name or a title from `practice list` or part of one, its number there, or your
    solution file; without it, the problem that you started last. `shardlab learn` does all of this
    on one screen.
    """


def choose_problem(workbook: Workbook, name: str | None, *, quiet: bool = False) -> Problem:
    """Return the named problem; without a name the current one, with a note which that is."""
    problem = workbook.find_problem(name)
    if name is None and not quiet:
        if workbook.store.latest_problem() == problem.slug:
            path = _short_path(workbook.solution_path(problem.slug))
            note = f"{problem.slug}, started last: {path}"
        else:
            note = f"{problem.slug}, the first problem: none was started yet"
        click.echo(note, err=True)
    return problem


def _short_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# ---------------------------------------------------------------------------- problems and progress


@command.command("list")
@catalogue_option
@json_option
def list_problems(catalogue: str | None, json_file: str | None) -> None:
    """Show all problems, which are solved, and the next one."""
    from shardlab.cli.outputs import show_lines, to_json_text, write_outputs
    from shardlab.course.progress_text import course_lines
    from shardlab.course.workbook import open_workbook

    rows = open_workbook(catalogue).list_progress()
    outputs = {"--json": (json_file, lambda: to_json_text([row.to_json() for row in rows]))}
    if not write_outputs(outputs):
        show_lines(lambda width: course_lines(rows, width))


@command.command("show")
@problem_argument
@catalogue_option
def show_problem(problem: str | None, catalogue: str | None) -> None:
    """Show the page of a problem."""
    from shardlab.course.workbook import open_workbook

    _show_markdown(choose_problem(open_workbook(catalogue), problem).page)


def _show_markdown(text: str) -> None:
    from shardlab.cli.outputs import show_lines
    from shardlab.course.statement_text import statement_lines

    show_lines(lambda width: statement_lines(text, width))


@command.command("start")
@problem_argument
@catalogue_option
@_folder_option
@click.option(
    "--force", is_flag=True, help="Replace an existing file; a backup is saved beside it."
)
def start_problem(
    problem: str | None, catalogue: str | None, folder: Path | None, force: bool
) -> None:
    """Write a problem's starter to your solution file. Without PROBLEM: the next one."""
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    name = problem or workbook.next_slug() or workbook.current_slug()
    selected = workbook.find_problem(name)
    path, backup = workbook.start_problem(selected, folder, force=force)
    _print_file(path, backup)
    arguments = f"{selected.slug} --catalogue {catalogue}" if catalogue else selected.slug
    click.echo(
        f"Show the task: shardlab practice show {arguments}\n"
        f"Run it:        shardlab practice run {arguments}\n"
        f"Submit it:     shardlab practice submit {arguments}",
        err=True,
    )


@command.command("reset")
@problem_argument
@catalogue_option
@_folder_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def reset_problem(
    problem: str | None, catalogue: str | None, folder: Path | None, yes: bool
) -> None:
    """Restore a problem's starter; a backup of your file is saved beside it."""
    from shardlab.course.solution_file import solution_file_missing
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    selected = choose_problem(workbook, problem)
    path = workbook.solution_path(selected.slug, folder)
    # A file that was started and then deleted can be restored.
    if not (path.exists() or workbook.store.progress_of(selected.slug).path):
        raise solution_file_missing(path, selected.slug)
    if path.exists() and not yes:
        click.confirm(f"Replace {_short_path(path)} by the starter?", abort=True, err=True)
    _print_file(*workbook.start_problem(selected, path.parent, force=True))


def _print_file(path: Path, backup: Path | None) -> None:
    if backup:
        click.echo(f"Your file was saved as {_short_path(backup)}", err=True)
    click.echo(_short_path(path))


@command.command("hint")
@problem_argument
@catalogue_option
@click.option("--all", "is_all", is_flag=True, help="Show the hints that you have seen already.")
def show_hint(problem: str | None, catalogue: str | None, is_all: bool) -> None:
    """Show the next hint; each one reveals a little more."""
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    selected = choose_problem(workbook, problem)
    if is_all:
        for hint in workbook.used_hints(selected):
            _print_hint(hint)
        return
    next_hint = workbook.next_hint(selected)
    if next_hint is None:
        click.echo("This problem has no hints.", err=True)
    else:
        _print_hint(next_hint)


def _print_hint(hint: Hint) -> None:
    _show_markdown(f"## Hint {hint.number} of {hint.total}\n\n{hint.text}")


@command.command("solution")
@problem_argument
@catalogue_option
def show_solution(problem: str | None, catalogue: str | None) -> None:
    """Show the reference solution: after a pass, or at the second request."""
    from shardlab._text.printable import printable_lines
    from shardlab._text.units import count_text
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    selected = choose_problem(workbook, problem)
    text = workbook.request_solution(selected)
    if text is None:
        n_unused = len(selected.hints) - workbook.store.progress_of(selected.slug).hints
        hints = f" You have not seen {count_text(n_unused, 'hint')}." if n_unused > 0 else ""
        click.echo(
            f"'{selected.slug}' is not solved yet.{hints} Run the command again to see the "
            "solution.",
            err=True,
        )
        click.get_current_context().exit(1)
    click.echo(printable_lines(text), nl=False)


@command.command("history")
@problem_argument
@catalogue_option
@click.option("--source", "number", type=int, metavar="N", help="Print the source of submission N.")
@json_option
def show_history(
    problem: str | None, catalogue: str | None, number: int | None, json_file: str | None
) -> None:
    """Show past runs and submissions, of all problems or of one."""
    from shardlab.cli.outputs import show_lines, to_json_text, write_outputs
    from shardlab.course.progress_text import history_lines
    from shardlab.course.workbook import open_workbook

    workbook = open_workbook(catalogue)
    if number is not None:
        # As bytes, because a submission need not be UTF-8.
        click.echo(workbook.store.load_source(number), nl=False)
        return
    slug = workbook.find_problem(problem).slug if problem else None
    submissions = workbook.store.list_submissions(slug)
    data = [submission.to_json() for submission in submissions]
    if write_outputs({"--json": (json_file, lambda: to_json_text(data))}):
        return
    if submissions:
        show_lines(lambda width: history_lines(submissions, workbook.catalogue.slugs, width))
    else:
        click.echo("Nothing was run or submitted yet.", err=True)


@command.command("export")
@click.argument("file", metavar="FILE", default="-", shell_complete=complete_path)
@catalogue_option
def export_progress(file: str, catalogue: str | None) -> None:
    """Write your progress and every submission to FILE.

    A name that ends in .zip also has each submission as a file of its own; any other is JSON, and -
    is standard output.
    """
    from shardlab.cli.outputs import STDOUT, print_result, to_json_text
    from shardlab.course.workbook import open_workbook
    from shardlab.errors import FolderUnwritable

    store = open_workbook(catalogue).store
    if file == STDOUT:
        print_result(to_json_text(store.export_data()))
        return
    is_zip = file.endswith(".zip")
    try:
        if is_zip:
            store.write_zip(Path(file))
        else:
            Path(file).write_text(to_json_text(store.export_data()) + "\n", "utf-8")
    except OSError as error:
        raise FolderUnwritable(
            f"The export cannot be written: {error.strerror or error}.",
            where=file,
            fix="name a file in an existing folder that you can write to.",
        ) from None
    click.echo(f"wrote {file} ({'zip' if is_zip else 'JSON'})", err=True)


# ------------------------------------------------------------------------------------------ judging

_judge_options = add_options(
    problem_argument,
    click.argument(
        "file", required=False, type=click.Path(path_type=Path), shell_complete=complete_path
    ),
    catalogue_option,
    json_option,
    output_option("--junit", "junit_file", "JUnit XML"),
    click.option("--exit-status", is_flag=True, help="Exit with 1 unless everything passes."),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the inputs."),
    click.option("--case", metavar="NAME", help="Judge only this case; nothing is stored."),
    level_option,
    click.option("--verbose", "-v", is_flag=True, help="Also show how it was judged."),
    quiet_option,
)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The options of `run` and `submit`."""

    problem: str | None
    file: Path | None
    catalogue: str | None
    json_file: str | None
    junit_file: str | None
    exit_status: bool
    seed: int | None
    case: str | None
    level: Level | None
    verbose: bool
    quiet: bool


@command.command("run")
@_judge_options
def run_examples(**options: Any) -> None:
    """Judge your solution file on the examples: small inputs that you can see.

    \b
    shardlab practice run                     the problem that you started last
    shardlab practice run shard-map-psum
    shardlab practice run shard-map-psum my_solution.py

    Exit code 0 when judged, whatever the verdict; with --exit-status 1 unless everything passes.
    """
    _judge_command(JudgeOptions(**options), "run")


@command.command("submit")
@_judge_options
@click.option(
    "--again",
    "submission_number",
    type=int,
    metavar="N",
    help="Judge submission N again, exactly as it was submitted.",
)
def submit_solution(submission_number: int | None, **options: Any) -> None:
    """Judge your solution file on all cases, and store the submission.

    \b
    shardlab practice submit shard-map-psum
    shardlab practice submit shard-map-psum --seed 7 --case "data=4"    one case only
    shardlab practice submit --again 12       one whose judging was interrupted

    Exit code 0 when judged, whatever the verdict; with --exit-status 1 unless everything passes.
    """
    _judge_command(JudgeOptions(**options), "submit", submission_number)


def _judge_command(options: JudgeOptions, kind: str, submission_number: int | None = None) -> None:
    from shardlab.cli.outputs import check_destinations
    from shardlab.course.workbook import open_workbook

    check_destinations(json=options.json_file, junit=options.junit_file)
    workbook = open_workbook(options.catalogue)
    if submission_number is not None:
        judgement = _judge_stored(
            workbook, options, workbook.store.get_submission(submission_number)
        )
    else:
        problem = choose_problem(workbook, options.problem, quiet=options.quiet)
        # Read before the pool opens, which takes seconds: a missing file is reported at once.
        source = _read_source(workbook, options, problem)
        if options.case is not None:
            judgement = _judge_one_case(workbook, options, problem, source, kind, options.case)
        else:
            judgement = _judge_new(workbook, options, problem, source, kind)
    _write_judgement(judgement, options)
    is_solved = kind == "submit" and judgement.passed and options.case is None
    if is_solved and not options.quiet:
        next_slug = _next_slug(workbook, judgement.problem)
        option = f" --catalogue {options.catalogue}" if options.catalogue else ""
        next_step = "All problems are solved."
        if next_slug:
            next_step = f"Next: `shardlab practice start {next_slug}{option}`"
        click.echo(f"Solved. {next_step}", err=True)
    click.get_current_context().exit(int(options.exit_status and not judgement.passed))


def _next_slug(workbook: Workbook, slug: str) -> str | None:
    """Return the next problem; without a store that can be read, the next one in the list."""
    from shardlab.errors import StoreError

    try:
        return workbook.next_slug(after=slug)
    except StoreError:
        slugs = workbook.catalogue.slugs
        return slugs[slugs.index(slug) + 1] if slug != slugs[-1] else None


def _read_source(workbook: Workbook, options: JudgeOptions, problem: Problem) -> bytes:
    from shardlab.course.solution_file import read_solution_file

    path = options.file
    if path is None and options.problem and options.problem.endswith(".py"):
        path = Path(options.problem)
    return read_solution_file(path or workbook.solution_path(problem.slug), problem.slug)


def _judge_new(
    workbook: Workbook, options: JudgeOptions, problem: Problem, source: bytes, kind: str
) -> Judgement:
    from shardlab.course.attempt import explain_rejected_submission, record_submission

    store, seed = workbook.store, options.seed
    rejection = explain_rejected_submission(store, problem, source, kind=kind, seed=seed)
    if rejection is not None:
        return rejection
    submission = record_submission(store, problem, source, kind=kind, seed=seed)
    return _judge_stored(workbook, options, submission, source)


def _judge_stored(
    workbook: Workbook,
    options: JudgeOptions,
    submission: Submission,
    source: bytes | None = None,
) -> Judgement:
    from shardlab.cli.outputs import show_progress
    from shardlab.course.attempt import judge_submission

    # By its own name: `--again` may be of another problem than the current one.
    problem = workbook.find_problem(submission.problem)
    try:
        with (
            show_progress(quiet=options.quiet) as report_step,
            closing(workbook.open_sandboxes(options.level)) as pool,
        ):
            return judge_submission(
                workbook.store,
                pool,
                problem,
                submission,
                report_case=lambda case: report_step(f"{problem.slug}: {case.name}"),
                source=source,
            )
    except KeyboardInterrupt:
        again = f"`shardlab practice submit --again {submission.number}` judges it"
        is_stored = not submission.store_error
        click.echo(
            f"interrupted; the submission is {f'stored: {again}' if is_stored else 'not stored'}",
            err=True,
        )
        raise click.exceptions.Exit(130) from None


def _judge_one_case(
    workbook: Workbook,
    options: JudgeOptions,
    problem: Problem,
    source: bytes,
    kind: str,
    case: str,
) -> Judgement:
    from shardlab.course.attempt import judge_case

    with closing(workbook.open_sandboxes(options.level)) as pool:
        return judge_case(pool, problem, source, kind=kind, seed=options.seed or 0, case=case)


def _write_judgement(judgement: Judgement, options: JudgeOptions) -> None:
    from shardlab.cli.outputs import show_lines, to_json_text, write_outputs
    from shardlab.judge.judgement_text import judgement_lines
    from shardlab.judge.junit import junit_xml
    from shardlab.judge.results_json import results_json

    outputs = {
        "--json": (options.json_file, lambda: to_json_text(results_json(judgement))),
        "--junit": (options.junit_file, lambda: junit_xml(judgement)),
    }
    if not write_outputs(outputs):
        show_lines(lambda width: judgement_lines(judgement, width, verbose=options.verbose))
