"""Reports drawn: gravest first, the line quoted, silenced ones told, and one line that counts."""

from __future__ import annotations

import pytest

from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, SuppressedFinding
from shardlab.findings.report_text import (
    _COLOURS,
    report_html,
    report_rich,
    report_text,
    summary_text,
)
from shardlab.findings.source import SourceLocation
from shardlab.render.palette import contrast

WASTE = Finding(
    code="waste.replicated",
    severity="warning",
    what="'w' is whole on each of 8 devices, 64 MiB of it.",
    where=SourceLocation("train.py", 9, "step"),
    fix="cut it over 'model'.",
)
HANG = Finding(
    code="hazard.deadlock",
    severity="error",
    what="Devices part ways before a psum over 'data': data=0 reaches it, the other three never do.",
    where=SourceLocation("train.py", 21, "step"),
    fix="call psum on every device and choose its result afterwards (jnp.where).",
    shows=("data=0: reaches it", "data=1: does not"),
)
NOTE = Finding(code="program.no_communication", severity="info", what="Nothing is sent.")
LINES = {9: "    w = load()", 21: "    y = lax.cond(i == 0, f, g, x)"}


def excerpt(source):
    return LINES[source.line]


def report(*findings, **fields):
    return Report(findings=findings, program="step", meshes=("data=4",), **fields)


def test_a_report_is_told_gravest_first_with_the_line_and_the_fix():
    silenced = (SuppressedFinding(WASTE, "small here"), SuppressedFinding(WASTE, "small here"))
    one = report(WASTE, HANG, notes=("Not run on 1x8.",), suppressed=silenced)
    assert report_text(one, 80, excerpt) == (
        """\
error [hazard.deadlock] Devices part ways before a psum over 'data': data=0
  reaches it, the other three never do.
  train.py:21 (step)
    21 | y = lax.cond(i == 0, f, g, x)
    data=0: reaches it
    data=1: does not
  try: call psum on every device and choose its result afterwards (jnp.where).

warning [waste.replicated] 'w' is whole on each of 8 devices, 64 MiB of it.
  train.py:9 (step)
    9 | w = load()
  try: cut it over 'model'.

silenced: waste.replicated (small here) ×2
note: Not run on 1x8.
step on data=4: 1 error, 1 warning"""
    )


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (report(), "step on data=4: nothing found"),
        (report(WASTE, NOTE), "step on data=4: 1 warning, 1 info, no errors"),
        (report(HANG), "step on data=4: 1 error"),
        (
            Report(findings=(), program="step", meshes=("a=1", "a=2", "a=4")),
            "step on a=1, a=2 and a=4: nothing found",
        ),
        (Report(findings=(), program="", meshes=()), "the program: nothing found"),
        (Report(findings=(), program="f", meshes=(), is_compared=False), "f: nothing was compared"),
        (
            Report(findings=(), program="f", meshes=tuple(f"a={n}" for n in range(9))),
            "f on 9 meshes: nothing found",
        ),
    ],
)
def test_the_last_line_counts(one, said):
    assert summary_text(one) == said
    assert str(one).splitlines()[-1] == said


def test_a_line_that_can_be_read_is_quoted(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text("x = 1\n    y = psum(x)\n", "utf-8")
    one = report(
        Finding(
            code="hazard.deadlock",
            severity="error",
            what="It hangs.",
            where=SourceLocation(str(path), 2),
        )
    )
    assert "    2 | y = psum(x)\n" in str(one)
    assert "2 | y = psum(x)" in one._repr_html_()


def test_without_the_files_the_place_is_told_alone():
    assert "21 |" not in str(report(HANG))
    assert "  train.py:21 (step)" in str(report(HANG))


LONG = Finding(
    code="hazard.mesh_dependent",
    severity="error",
    what="The output is not what one device computes.",
    where=SourceLocation("train.py", 9, "step"),
    fix="look at what each collective adds up and over which mesh axes; shardlab.trace lists them.",
    shows=(
        "on data=4: [[0.25716 ... 0.01759] [0.0594 ... -0.02384]], 48 of 48 elements differ",
        "JAX: shard_map applied to the function 'body' was given out_specs which require it",
        "     " + "and a word_of_" + "many_" * 20 + "letters",
    ),
)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_is_wider_than_asked_and_no_evidence_is_cut_off(width):
    text = report_text(report(WASTE, HANG, NOTE, LONG), width, excerpt)
    assert max(map(len, text.splitlines())) <= width
    run_together = "".join(text.split())
    for line in (*LONG.shows, LONG.fix):
        assert "".join(line.split()) in run_together


def test_a_quoted_line_that_is_too_long_says_that_it_goes_on():
    text = report_text(report(HANG), 60, lambda source: "y = f(" + "x, " * 40 + ")")
    (quoted,) = [line for line in text.splitlines() if line.startswith("    21 |")]
    assert len(quoted) <= 60
    assert quoted.endswith(" ...")


def test_colour_says_how_grave_it_is():
    text = report_rich(report(WASTE, HANG))
    styles = {text.plain[span.start : span.end].split(" ")[0]: span.style for span in text.spans}
    assert styles["error"] == "bold red"
    assert styles["warning"] == "bold yellow"


def test_html_is_escaped_and_complete():
    evil = Finding(
        code="hazard.deadlock",
        severity="error",
        what="<b>",
        where=SourceLocation("<i>.py", 1),
        fix="<u>",
        shows=("<s>",),
    )
    html = report_html(report(evil, notes=("<q>",)), lambda source: "<em>")
    assert not any(f"<{tag}>" in html for tag in ("i", "u", "s", "q", "em"))
    assert html.count("&lt;") == 6
    assert "hazard.deadlock" in report(HANG)._repr_html_()


@pytest.mark.parametrize("colour", sorted(_COLOURS.values()))
@pytest.mark.parametrize("page", ["#FFFFFF", "#111111"])
def test_the_colours_of_html_can_be_read_on_light_and_dark_pages(colour, page):
    assert contrast(colour, page) >= 3.3
