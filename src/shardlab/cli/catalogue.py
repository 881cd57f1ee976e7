"""`shardlab catalogue`: audits problems, and creates new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import complete_problem
from shardlab.cli.options import catalogue_option, json_option

if TYPE_CHECKING:
    from shardlab.course.audit import Audit


@click.group("catalogue")
def command() -> None:
    """Write problems, and check that they work."""


@command.command("check")
@click.argument("slugs", nargs=-1, metavar="[SLUG]...", shell_complete=complete_problem)
@catalogue_option
@click.option("--fast", is_flag=True, help="Lint everything, and judge solutions on a few meshes.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the cases, instead of the fixed one.")
@click.option(
    "-j",
    "n_workers",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Problems to audit in parallel.",
)
@json_option
def check(
    slugs: tuple[str, ...],
    catalogue: str | None,
    fast: bool,
    seed: int | None,
    n_workers: int,
    json_file: str | None,
) -> None:
    """Audit the named problems, or all.

    Starters must fail, solutions pass on every mesh, known-wrong submissions fail with the verdict
    in their first line, and the examples of each page print what the page shows. Hidden cases must
    kill every mutant of the reference and of the solution.

    \b
    shardlab catalogue check
    shardlab catalogue check shard-map-psum round-the-ring
    shardlab catalogue check --catalogue our-problems --fast

    Exit code 0 if every audit passes, 1 otherwise.
    """
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.cli.outputs import check_destinations
    from shardlab.course.audit import SEED, audit_problems

    check_destinations(json=json_file)
    audits = []
    seed = SEED if seed is None else seed
    for audit in audit_problems(
        load_catalogue(catalogue), slugs, fast=fast, seed=seed, n_workers=n_workers
    ):
        audits.append(audit)
        # Printed as each audit ends: a full audit takes minutes.
        if json_file != "-":
            click.echo(_audit_text(audit))
    if len(audits) > 1 and json_file != "-":
        click.echo(f"{sum(audit.ok for audit in audits)} of {len(audits)} problems pass.")
    _finish(audits, json_file)


def _audit_text(audit: Audit) -> str:
    """Return one line for a problem that passes, and its faults for one that does not."""
    from shardlab._text.printable import printable_text

    mark = click.style("ok  ", fg="green") if audit.ok else click.style("FAIL", fg="red")
    counts = f"{audit.n_cases} cases, {audit.n_wrong} wrong submissions, {_score_counts(audit)}"
    lines = [f"{mark}  {audit.slug:32}  {counts}"]
    for fault in audit.faults:
        lines += [f"      {printable_text(line)}" for line in str(fault).splitlines()]
    return "\n".join(lines)


@command.command("mutants")
@click.argument("slugs", nargs=-1, metavar="[SLUG]...", shell_complete=complete_problem)
@catalogue_option
@click.option("--seed", type=click.IntRange(0), help="First seed of the cases.")
@click.option("--solution", is_flag=True, help="Judge mutants of solution.py too. Takes minutes.")
@json_option
def mutants(
    slugs: tuple[str, ...],
    catalogue: str | None,
    seed: int | None,
    solution: bool,
    json_file: str | None,
) -> None:
    """Print the mutation score of the named problems, or of all.

    Each mutant is a small change of the reference: an argument ignored, a term dropped, another
    reduction. The hidden cases of every seed must kill each mutant that is not equivalent, and the
    arguments must vary.

    \b
    shardlab catalogue mutants
    shardlab catalogue mutants clip-by-global-norm --solution

    Exit code 0 if no mutant survives and all arguments vary, 1 otherwise.
    """
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.cli.outputs import check_destinations
    from shardlab.course.audit import SEED, audit_mutants

    check_destinations(json=json_file)
    audits = []
    for audit in audit_mutants(
        load_catalogue(catalogue),
        slugs,
        seed=SEED if seed is None else seed,
        with_solution=solution,
    ):
        audits.append(audit)
        if json_file != "-":
            click.echo(_score_text(audit))
    _finish(audits, json_file)


def _finish(audits: list[Audit], json_file: str | None) -> None:
    """Write the audits as JSON if requested, and exit with 1 if one of them has faults."""
    from shardlab.cli.outputs import to_json_text, write_outputs

    write_outputs({"--json": (json_file, lambda: to_json_text([*map(_audit_json, audits)]))})
    click.get_current_context().exit(0 if all(audit.ok for audit in audits) else 1)


def _score_text(audit: Audit) -> str:
    from shardlab._text.printable import printable_text

    counts = f"{audit.score.percent:5.1f} %  {_score_counts(audit)}"
    if not audit.score.n_mutants:
        counts = "no mutants of the reference: judged by properties; see --solution"
    lines = [f"{audit.slug:32}  {counts}"]
    for fault in audit.faults:
        lines += [f"      {printable_text(line)}" for line in str(fault).splitlines()]
    return "\n".join(lines)


def _score_counts(audit: Audit) -> str:
    score = audit.score
    return f"{score.n_killed} of {score.n_mutants} mutants killed, {score.n_equivalent} equivalent"


def _audit_json(audit: Audit) -> dict[str, Any]:
    return {
        "slug": audit.slug,
        "ok": audit.ok,
        "cases": audit.n_cases,
        "wrong_submissions": audit.n_wrong,
        "mutation": audit.score.to_json(),
        "faults": [
            {
                "rule": fault.rule,
                "message": fault.message,
                "file": fault.file,
                "line": fault.line,
                "details": list(fault.details),
            }
            for fault in audit.faults
        ],
    }


@command.command("new")
@click.argument("slug")
@click.option("--track", required=True, help="Folder of the track, such as c-collectives.")
@catalogue_option
def new(slug: str, track: str, catalogue: str | None) -> None:
    """Create a problem that passes the audit.

    Rewrite it step by step.

    \b
    shardlab catalogue new split-the-rows --track basics --catalogue our-problems

    A catalogue or a track that does not exist is created.
    """
    from pathlib import Path

    from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
    from shardlab.course.new_problem import new_problem

    folder = new_problem(slug, track, Path(catalogue) if catalogue else BUILT_IN_CATALOGUE)
    click.echo(str(folder))
    option = f" --catalogue {catalogue}" if catalogue else ""
    click.echo(f"Try it: shardlab catalogue check {slug}{option}", err=True)
