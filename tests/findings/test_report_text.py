"""Rendered reports: most severe first, source line, suppressed findings, and a summary line."""

from __future__ import annotations

import pytest

from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, SuppressedFinding
from shardlab.findings.report_text import (
    _HTML_COLORS,
    report_html,
    report_rich,
    report_text,
    summary_text,
)
from shardlab.findings.source import SourceLocation
from shardlab.render.palette import contrast_ratio

WASTE = Finding(
    code="waste.replicated",
    severity="warning",
    what="'w' is replicated on 8 devices, 67.1 MB each.",
    where=SourceLocation("train.py", 9, "step"),
    fix="shard it over 'model'.",
)
HANG = Finding(
    code="hazard.deadlock",
    severity="error",
    what="Devices diverge before a psum over 'data': data=0 reaches it, the other three never do.",
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


def test_a_report_lists_the_most_severe_first_with_line_and_fix():
    suppressed = (SuppressedFinding(WASTE, "small here"), SuppressedFinding(WASTE, "small here"))
    rendered = report(WASTE, HANG, notes=("Not run on 1x8.",), suppressed=suppressed)
    assert report_text(rendered, 80, excerpt) == (
        """\
error [hazard.deadlock] Devices diverge before a psum over 'data': data=0
  reaches it, the other three never do.
  train.py:21 (step)
    21 | y = lax.cond(i == 0, f, g, x)
    data=0: reaches it
    data=1: does not
  try: call psum on every device and choose its result afterwards (jnp.where).

warning [waste.replicated] 'w' is replicated on 8 devices, 67.1 MB each.
  train.py:9 (step)
    9 | w = load()
  try: shard it over 'model'.

suppressed: waste.replicated (small here) ×2
note: Not run on 1x8.
step on data=4: 1 error, 1 warning"""
    )


@pytest.mark.parametrize(
    ("report_", "summary"),
    [
        (report(), "step on data=4: nothing found"),
        (report(WASTE, NOTE), "step on data=4: 1 warning, 1 info, no errors"),
        (report(HANG), "step on data=4: 1 error"),
        (
            Report(findings=(), program="step", meshes=("a=1", "a=2", "a=4")),
            "step on a=1, a=2 and a=4: nothing found",
        ),
        (Report(findings=(), program="", meshes=()), "the program: nothing found"),
        (
            Report(findings=(), program="f", meshes=(), is_compared=False),
            "f: nothing found; values were not compared",
        ),
        (
            Report(findings=(), program="f", meshes=tuple(f"a={n}" for n in range(9))),
            "f on 9 meshes: nothing found",
        ),
    ],
)
def test_the_last_line_is_the_summary(report_, summary):
    assert summary_text(report_) == summary
    assert str(report_).splitlines()[-1] == summary


def test_a_readable_source_line_is_quoted(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text("x = 1\n    y = psum(x)\n", "utf-8")
    rendered = report(
        Finding(
            code="hazard.deadlock",
            severity="error",
            what="It hangs.",
            where=SourceLocation(str(path), 2),
        )
    )
    assert "    2 | y = psum(x)\n" in str(rendered)
    assert "2 | y = psum(x)" in rendered._repr_html_()


def test_without_the_files_only_the_location_is_shown():
    assert "21 |" not in str(report(HANG))
    assert "  train.py:21 (step)" in str(report(HANG))


LONG = Finding(
    code="hazard.mesh_dependent",
    severity="error",
    what="The output is not what one device computes.",
    where=SourceLocation("train.py", 9, "step"),
    fix="check what each collective sums and over which mesh axes; shardlab.trace lists them.",
    shows=(
        "on data=4: [[0.25716 ... 0.01759] [0.0594 ... -0.02384]], 48 of 48 elements differ",
        "JAX: shard_map applied to the function 'body' was given out_specs which require it",
        "     " + "and a word_of_" + "many_" * 20 + "letters",
    ),
)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_line_exceeds_the_width_and_no_evidence_is_truncated(width):
    text = report_text(report(WASTE, HANG, NOTE, LONG), width, excerpt)
    assert max(map(len, text.splitlines())) <= width
    run_together = "".join(text.split())
    for line in (*LONG.shows, LONG.fix):
        assert "".join(line.split()) in run_together


def test_a_source_line_that_is_too_long_ends_with_dots():
    text = report_text(report(HANG), 60, lambda source: "y = f(" + "x, " * 40 + ")")
    (quoted,) = [line for line in text.splitlines() if line.startswith("    21 |")]
    assert len(quoted) <= 60
    assert quoted.endswith(" ...")


def test_the_color_shows_the_severity():
    text = report_rich(report(WASTE, HANG))
    styles = {text.plain[span.start : span.end].split(" ")[0]: span.style for span in text.spans}
    assert styles["error"] == "bold red"
    assert styles["warning"] == "bold yellow"


def test_html_is_escaped_and_complete():
    hostile = Finding(
        code="hazard.deadlock",
        severity="error",
        what="<b>",
        where=SourceLocation("<i>.py", 1),
        fix="<u>",
        shows=("<s>",),
    )
    html = report_html(report(hostile, notes=("<q>",)), lambda source: "<em>")
    assert not any(f"<{tag}>" in html for tag in ("i", "u", "s", "q", "em"))
    assert html.count("&lt;") == 6
    assert "hazard.deadlock" in report(HANG)._repr_html_()


@pytest.mark.parametrize("color", sorted(_HTML_COLORS.values()))
@pytest.mark.parametrize("page", ["#FFFFFF", "#111111"])
def test_the_html_colors_are_readable_on_light_and_dark_pages(color, page):
    assert contrast_ratio(color, page) >= 3.3
