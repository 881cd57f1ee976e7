"""`shardlab check`: the mistakes that one device cannot show."""

from __future__ import annotations

import json
from typing import Any

import click

from shardlab.cli.worker_options import ARGUMENTS_HELP, ask, program_options, raise_failure

_HELP = f"""Find what would hang, differ or be wasted on many devices.

    PROGRAM is file.py:function, module:function, or a whole script.

    \b
    shardlab check train.py:step 'f32[64,512]' 'f32[512,512]' --mesh data=2,model=4
    shardlab check train.py:step --mesh data=2 --mesh data=8 --sarif findings.sarif
    shardlab check train.py -- --steps 2
{ARGUMENTS_HELP}
    \b
    Exit codes
      0    no errors; there may be warnings
      1    errors were found
      2    the program could not be looked at, or the command was not understood
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error; standard output holds the report.
    """


@click.command("check", help=_HELP)
@program_options
@click.option(
    "--mesh",
    "meshes",
    multiple=True,
    metavar="AXES",
    help="Mesh axes, such as data=2,model=4; give it again to compare several meshes.",
)
@click.option(
    "--no-run", is_flag=True, help="Read the program only; do not run it to compare values."
)
@click.option("--sarif", "sarif_to", metavar="FILE", help="Write SARIF 2.1.0 to FILE.")
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    meshes: tuple[str, ...],
    devices: int | None,
    no_run: bool,
    json_to: str | None,
    sarif_to: str | None,
    html_to: str | None,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.outputs import check_places
    from shardlab.execution.target import make_job, parse_target

    check_places(json=json_to, sarif=sarif_to, html=html_to)
    target = parse_target(program)
    told = make_job(
        "check",
        target,
        args,
        args_from,
        meshes=_meshes(meshes),
        devices=devices,
        run=not no_run,
    )
    answer = ask(told, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    file = "" if target.kind == "module" else target.place
    ok = _write(answer["report"], file, json_to, sarif_to, html_to)
    raise_failure(answer)
    click.get_current_context().exit(0 if ok else 1)


def _meshes(texts: tuple[str, ...]) -> list[str]:
    from shardlab.sharding.mesh import parse_mesh

    return [str(parse_mesh(text)) for text in texts]


def _write(
    data: dict[str, Any],
    program: str,
    json_to: str | None,
    sarif_to: str | None,
    html_to: str | None,
) -> bool:
    from shardlab.cli.outputs import excerpt, json_text, page, show, write_all
    from shardlab.findings.report import Report
    from shardlab.findings.report_text import report_html, report_rich, report_text

    report = Report.from_json(data)

    def as_sarif() -> str:
        from shardlab.cli.sarif import sarif

        return json.dumps(sarif(report, program=program), indent=2)

    outputs = {
        "--json": (json_to, lambda: json_text(report.to_json())),
        "--sarif": (sarif_to, as_sarif),
        "--html": (html_to, lambda: page(report.program, [report_html(report, excerpt)])),
    }
    if not write_all(outputs):
        show(
            lambda width: report_text(report, width, excerpt),
            lambda width: report_rich(report, width, excerpt),
        )
    return report.ok
