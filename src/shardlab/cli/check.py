"""`shardlab check`: bugs that do not show on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_mesh
from shardlab.cli.options import PROGRAM_ARGUMENTS_HELP, output_option, program_options

if TYPE_CHECKING:
    from shardlab.execution.target import Target
    from shardlab.findings.report import Report

_HELP = f"""Find deadlocks, wrong values and wasted communication on many devices.

    PROGRAM is file.py:function, module:function, or a script.

    \b
    shardlab check train.py:step 'f32[64,512]' 'f32[512,512]' --mesh data=2,model=4
    shardlab check train.py:step --mesh data=2 --mesh data=8 --sarif findings.sarif
    shardlab check train.py:step --mesh stage=4 --reference train.py:plain_step
    shardlab check train.py:step --mesh data=8 --fix
    shardlab check train.py:step --mesh data=256,model=256
    shardlab check train.py -- --steps 2
{PROGRAM_ARGUMENTS_HELP}
    \b
    Exit codes
      0    no errors, or --write fixed them; there may be warnings
      1    errors were found
      2    the program could not be analyzed, or the command is invalid
      4    no errors, but values were not compared: a script, no mesh to compare with, or a mesh
           too large to run to which the result does not carry over
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error; standard output holds the report.
    """


@click.command("check", help=_HELP, short_help="Find bugs that one device hides.")
@program_options
@click.option(
    "--mesh",
    "meshes",
    multiple=True,
    metavar="AXES",
    shell_complete=complete_mesh,
    help="Mesh axes, such as data=2,model=4; repeat it to compare several meshes.",
)
@click.option(
    "--no-run", is_flag=True, help="Only trace the program; do not run it to compare values."
)
@click.option(
    "--reference",
    metavar="PROGRAM",
    help="A function without a mesh, file.py:function, that returns what is right; its results are "
    "compared instead of those on one device.",
)
@click.option(
    "--scaled/--no-scaled",
    default=None,
    help="Run on scaled-down meshes, with the obligations for the result to carry over; or never. "
    "Default: if a mesh is too large to run.",
)
@click.option(
    "--fix", is_flag=True, help="Search for an edit of the file that provably fixes the program."
)
@click.option("--diff", is_flag=True, help="Print only that edit, as a diff for git apply.")
@click.option("--write", is_flag=True, help="Write that edit into the file.")
@click.option("--verbose", is_flag=True, help="With --fix: list every edit that was tried.")
@output_option("--sarif", "sarif_file", "SARIF 2.1.0")
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    meshes: tuple[str, ...],
    devices: int | None,
    no_run: bool,
    reference: str | None,
    scaled: bool | None,
    fix: bool,
    diff: bool,
    write: bool,
    verbose: bool,
    json_file: str | None,
    sarif_file: str | None,
    html_file: str | None,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.jobs import raise_failure, run_job
    from shardlab.cli.outputs import check_destinations
    from shardlab.execution.messages import Job
    from shardlab.execution.target import check_arguments, parse_reference, parse_target
    from shardlab.sharding.mesh import parse_mesh

    check_destinations(json=json_file, sarif=sarif_file, html=html_file)
    target = parse_target(program)
    check_arguments(target, args, args_from)
    if scaled and target.kind == "script":
        raise click.UsageError("A script runs on its own mesh, so --scaled needs a function.")
    fix = fix or diff or write
    if fix:
        _check_fixable(target, no_run)
    reference_target = parse_reference(reference, target, no_run) if reference else None
    job = Job(
        command="check",
        target=target,
        args=args,
        args_from=args_from,
        meshes=tuple(str(parse_mesh(mesh)) for mesh in meshes),
        devices=devices,
        run=not no_run,
        reference=reference_target,
        scaled=scaled,
        fix=fix,
    )
    result = run_job(job, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    assert result.report is not None
    # SARIF needs a file for findings without a line; of a module it is not known here.
    file = "" if target.kind == "module" else target.location
    # The report of a script that failed has the findings until then; the failure follows it.
    if diff:
        _print_diff(result.report)
    else:
        _write_report(result.report, file, json_file, sarif_file, html_file, verbose)
    raise_failure(result)
    is_written = write and _write_fixes(result.report)
    click.get_current_context().exit(0 if is_written else _exit_code(result.report))


NOT_COMPARED_EXIT_CODE = 4


def _exit_code(report: Report) -> int:
    if not report.ok:
        return 1
    return 0 if report.is_compared else NOT_COMPARED_EXIT_CODE


def _check_fixable(target: Target, no_run: bool) -> None:
    """Reject what leaves nothing to prove a fix with, before a process is started."""
    from shardlab.errors import InvalidTarget

    if target.kind == "script":
        raise InvalidTarget(
            "--fix needs a function: the values of a script are not compared, so no edit of it can "
            "be proven.",
            where=f"the program {str(target)!r}",
            fix=f"name the function, as in {target.location}:step.",
        )
    if no_run:
        raise click.UsageError("--fix proves each edit with runs, so --no-run cannot be used.")


def _print_diff(report: Report) -> None:
    from shardlab.cli.outputs import print_result

    fixes = report.fix_search.fixes if report.fix_search else ()
    if fixes:
        print_result(fixes[0].diff, newline=False)
    else:
        note = report.fix_search.note if report.fix_search else ""
        click.echo(f"no fix could be proven. {note}".rstrip(), err=True)


def _write_fixes(report: Report) -> bool:
    """Write the smallest proven fix; return whether there is one."""
    from shardlab.fixes.write_fix import write_fix

    fixes = report.fix_search.fixes if report.fix_search else ()
    if not fixes:
        return False
    write_fix(fixes[0])
    click.echo(f"wrote {fixes[0].file}: {fixes[0].what}", err=True)
    return True


def _write_report(
    report: Report,
    program_file: str,
    json_file: str | None,
    sarif_file: str | None,
    html_file: str | None,
    verbose: bool,
) -> None:
    from shardlab.cli.outputs import (
        html_page,
        read_source_line,
        show_report,
        to_json_text,
        write_outputs,
    )
    from shardlab.findings.report_text import report_html, report_rich, report_text

    def render_sarif() -> str:
        from shardlab.cli.sarif import report_to_sarif

        return to_json_text(report_to_sarif(report, program_file=program_file))

    def render_page() -> str:
        return html_page(report.program, [report_html(report, read_source_line)])

    outputs = {
        "--json": (json_file, lambda: to_json_text(report.to_json())),
        "--sarif": (sarif_file, render_sarif),
        "--html": (html_file, render_page),
    }
    if not write_outputs(outputs):
        show_report(
            lambda width: report_text(report, width, read_source_line),
            lambda width: report_rich(report, width, read_source_line),
        )
        if report.fix_search is not None:
            from shardlab.cli.outputs import show_lines
            from shardlab.findings.fix_text import fix_lines

            search = report.fix_search
            show_lines(lambda width: fix_lines(search, width, verbose=verbose))
