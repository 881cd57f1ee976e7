"""`shardlab catalogue`: audits problems, and creates new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_problem
from shardlab.cli.options import catalogue_option

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
def check(
    slugs: tuple[str, ...], catalogue: str | None, fast: bool, seed: int | None, n_workers: int
) -> None:
    """Audit the named problems, or all.

    Starters must fail, solutions pass on every mesh, known-wrong submissions fail with the verdict
    in their first line, and the examples of each page print what the page shows.

    \b
    shardlab catalogue check
    shardlab catalogue check shard-map-psum round-the-ring
    shardlab catalogue check --catalogue our-problems --fast

    Exit code 0 if every audit passes, 1 otherwise.
    """
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.course.audit import SEED, audit_problems

    outcomes = []
    seed = SEED if seed is None else seed
    for audit in audit_problems(
        load_catalogue(catalogue), slugs, fast=fast, seed=seed, n_workers=n_workers
    ):
        outcomes.append(audit.ok)
        # Printed as each audit ends: a full audit takes minutes.
        click.echo(_audit_text(audit))
    if len(outcomes) > 1:
        click.echo(f"{sum(outcomes)} of {len(outcomes)} problems pass.")
    click.get_current_context().exit(0 if all(outcomes) else 1)


def _audit_text(audit: Audit) -> str:
    """Return one line for a problem that passes, and its faults for one that does not."""
    from shardlab._text.printable import printable_text

    mark = click.style("ok  ", fg="green") if audit.ok else click.style("FAIL", fg="red")
    counts = f"{audit.n_cases} cases, {audit.n_wrong} wrong submissions"
    lines = [f"{mark}  {audit.slug:32}  {counts}"]
    for fault in audit.faults:
        lines += [f"      {printable_text(line)}" for line in str(fault).splitlines()]
    return "\n".join(lines)


@command.command("mutants")
@click.argument("slugs", nargs=-1, metavar="[SLUG]...", shell_complete=complete_problem)
@catalogue_option
@click.option("--seed", type=click.IntRange(0), help="First seed of the cases.")
def mutants(slugs: tuple[str, ...], catalogue: str | None, seed: int | None) -> None:
    """Print the mutation score of the named problems, or of all.

    Each mutant is a small change of the reference. Hidden cases must give another result for
    every mutant that is not equivalent.
    """
    from shardlab.catalogue.problem import load_problem
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.course.audit import SEED
    from shardlab.course.mutation_audit import score_reference

    listed = load_catalogue(catalogue)
    outcomes = []
    for slug in slugs or listed.slugs:
        problem = load_problem(listed.folder / listed.track_of(slug).folder / slug)
        score = score_reference(problem, seed=SEED if seed is None else seed)
        outcomes.append(not score.survivors and not score.unused_exceptions)
        click.echo(
            f"{slug:32}  {score.percent:5.1f} %  {score.n_killed:5} of {score.n_mutants:5} killed, "
            f"{score.n_equivalent:4} equivalent"
        )
        for survivor in score.survivors:
            click.echo(f"    {survivor}")
        for name in score.unused_exceptions:
            click.echo(f"    audit.toml  not needed: {name}")
    click.get_current_context().exit(0 if all(outcomes) else 1)


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
