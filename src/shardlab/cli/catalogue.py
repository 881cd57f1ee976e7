"""`shardlab catalogue`: audits problems, and starts new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shardlab.course.audit import Audit

_CATALOGUE = click.option(
    "--catalogue",
    "folder",
    metavar="DIR",
    help="A catalogue of your own, in the place of shardlab's.",
)


@click.group("catalogue")
def command() -> None:
    """Write problems, and prove that they hold what they promise."""


@command.command("check")
@click.argument("slugs", nargs=-1, metavar="[SLUG]...")
@_CATALOGUE
@click.option("--fast", is_flag=True, help="Read everything, and try solutions on a few meshes.")
@click.option("--seed", type=click.IntRange(0), help="Draw other cases than the usual.")
@click.option(
    "-j",
    "n_workers",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Problems at a time.",
)
def check(
    slugs: tuple[str, ...], folder: str | None, fast: bool, seed: int | None, n_workers: int
) -> None:
    """Audit problems, those named or all.

    Starters fail, solutions pass on every mesh, wrong answers fail with what their first line says,
    and the examples of each page give what it says.

    \b
    shardlab catalogue check
    shardlab catalogue check shard-map-psum round-the-ring
    shardlab catalogue check --catalogue our-problems --fast

    Exit code 0 where everything holds, 1 where something does not.
    """
    from shardlab.catalogue.tracks import load_catalogue
    from shardlab.course.audit import SEED, audit_problems

    ended = []
    catalogue = load_catalogue(folder)
    seed = SEED if seed is None else seed
    for audited in audit_problems(catalogue, slugs, fast=fast, seed=seed, n_workers=n_workers):
        ended.append(audited.ok)
        click.echo(_told(audited))
    if len(ended) > 1:
        click.echo(f"{sum(ended)} of {len(ended)} problems hold what they promise.")
    click.get_current_context().exit(0 if all(ended) else 1)


def _told(audited: Audit) -> str:
    """Return one line for a problem that holds, and the whole story for one that does not."""
    from shardlab._text.printable import printable_text

    mark = click.style("ok  ", fg="green") if audited.ok else click.style("FAIL", fg="red")
    tried = f"{audited.n_cases} cases, {audited.n_wrong} wrong answers"
    lines = [f"{mark}  {audited.slug:32}  {tried}"]
    for fault in audited.faults:
        lines += [f"      {printable_text(line)}" for line in str(fault).splitlines()]
    return "\n".join(lines)


@command.command("new")
@click.argument("slug")
@click.option("--track", required=True, help="Folder of the track, such as c-collectives.")
@_CATALOGUE
def new(slug: str, track: str, folder: str | None) -> None:
    """Start a problem that passes the audit.

    Rewrite it piece by piece.

    \b
    shardlab catalogue new split-the-rows --track basics --catalogue our-problems

    A catalogue or a track that is not there yet is started.
    """
    from pathlib import Path

    from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
    from shardlab.course.new_problem import new_problem

    place = new_problem(slug, track, Path(folder) if folder else BUILT_IN_CATALOGUE)
    where = f" --catalogue {folder}" if folder else ""
    click.echo(f"{place}\nTry it: shardlab catalogue check {slug}{where}")
