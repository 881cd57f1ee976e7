"""Rendered traces and estimates: no line too wide, nothing lost in grouping, nothing unsafe."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import jax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from rich.console import Console

import shardlab
from hardware.sample_traces import MESH, call, many_lines, train_step, with_branches
from render.svg_frame import assert_inside_frame
from shardlab.findings.source import SourceLocation
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html
from shardlab.tracing.call_groups import group_calls
from shardlab.tracing.collective_style import op_paint
from shardlab.tracing.observation import Memory
from shardlab.tracing.ring_steps_picture import steps_svg
from shardlab.tracing.timeline import build_timeline, timeline_lines
from shardlab.tracing.trace import Trace
from shardlab.tracing.trace_text import trace_html, trace_line, trace_rich, trace_text
from shardlab.tracing.traffic_bars import traffic_by_axis

SVG = "{http://www.w3.org/2000/svg}"
EMPTY = Trace(program="nothing", mesh=(("x", 4),), collectives=())
TRACES = {
    "step": train_step(),
    "branches": with_branches(),
    "many": many_lines(90),
    "empty": EMPTY,
    "no_mesh": Trace(program="f", mesh=(), collectives=()),
}
every_trace = pytest.mark.parametrize("trace", list(TRACES.values()), ids=list(TRACES))


def test_the_header_says_if_latency_is_not_counted():
    trace = train_step()
    slow = trace_text(trace, 100, trace.estimate("mi300x"))
    assert " without latency; communication-bound" in slow
    for hardware in ("tpu-v5p", "h100"):
        assert "latency;" not in trace_text(trace, 100, trace.estimate(hardware))
    assert "latency;" not in trace_text(EMPTY, 100, EMPTY.estimate("h100"))


def test_the_repr_of_a_trace_is_one_line():
    assert repr(EMPTY) == "<Trace of nothing on x=4: 0 calls, 0 bytes>"
    assert repr(train_step()).startswith("<Trace of ")
    assert len(repr(train_step())) < 100


@every_trace
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_width(trace, width):
    text = trace_text(trace, width, trace.estimate("h100"))
    assert max(map(len, text.splitlines())) <= width


@every_trace
def test_rich_without_color_prints_the_same_text(trace):
    out = io.StringIO()
    Console(file=out, width=100).print(trace_rich(trace))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == str(trace).splitlines()


def test_a_train_step_fits_on_one_screen():
    text = trace_text(train_step(), 100, train_step().estimate("tpu-v5p"))
    assert text.startswith(
        """\
train_step on mesh data=16,model=32, 512 devices
each device sends 32.1 GB in 265 collective calls from 5 lines
each device computes 12 TFLOP

On tpu-v5p: 184 ms to 210 ms; communication-bound, by 'model'
  compute            26.1 ms  12 %
  communication       184 ms  88 %
    over model        179 ms  85 %, ICI
    over data        5.03 ms  2 %, ICI
    over data,model    48 µs  <1 %, ICI

Calls
  operation     over        operand               sends   ×     total  share     time  where"""
    )
    assert "  psum (all-reduce)               31.2 GB  97 %  ████████" in text
    assert "  model.py:44 (layer)   18.7 GB  58 %" in text
    assert "Memory per device: 12.0 GB, reported by XLA for cpu" in text
    assert "link_bandwidth 90 GB/s one way per link: JAX scaling book, tpus.md" in text
    assert len(text.splitlines()) < 70


def test_the_operand_stays_at_80_columns():
    text = trace_text(train_step(), 80, train_step().estimate("tpu-v5p"))
    (line,) = [line for line in text.splitlines() if "psum_scatter  data" in line and ":41" in line]
    assert " ".join(line.split()) == (
        "psum_scatter data bf16[4096,1024] 24 188.7 MB 1.12 ms …del.py:41"
    )


def test_phases_are_separate():
    text = str(train_step())
    assert [line.strip() for line in text.splitlines() if line.startswith("  forward")] == [
        "forward: 12.8 GB, 40 %"
    ]
    assert text.index("forward:") < text.index("recompute:") < text.index("backward:")


def test_branches_and_loops_are_shown():
    text = str(with_branches())
    assert "branch 0 (false) of the cond at a.py:10; not counted: another branch sends more" in text
    assert "    branch 1 (true) of the cond at a.py:10\n" in text
    assert "per iteration of the while loop at a.py:20" in text
    assert "each device sends 13.3 kB in 2 collective calls from 2 lines" in text
    assert "Findings: 1 error; see shardlab.check for details" in text
    assert "error [hazard.deadlock] Devices diverge before a psum over 'x'. (a.py:11)" in text


def unrolled(n_layers):
    """The calls of a layer written out n times, as a Python loop leaves them."""
    layer = [
        call("all_gather", "data", (8, 64), source=SourceLocation("m.py", 4)),
        call("psum", "model", (32, 64), source=SourceLocation("m.py", 7)),
    ]
    return Trace(program="unrolled", mesh=MESH, collectives=tuple(layer * n_layers))


def test_unrolled_layers_become_one_line_each():
    trace = unrolled(24)
    assert [group.count for group in group_calls(trace)] == [24, 24]
    assert sum(group.n_bytes for group in group_calls(trace)) == trace.wire_bytes
    assert str(trace).count("all_gather  data") == 1


@every_trace
def test_grouping_loses_no_bytes_and_no_time(trace):
    estimate = trace.estimate("h100")
    counted = [group for group in group_calls(trace, estimate) if group.is_counted]
    assert sum(group.n_bytes for group in counted) == trace.wire_bytes
    seconds = sum(group.seconds for group in counted)
    assert seconds == pytest.approx(estimate.communication_seconds)


def test_inserted_collectives_are_marked_once_or_by_line():
    called, inserted = unrolled(1).collectives
    inserted = replace(inserted, origin="compiler")
    mixed = Trace(program="f", mesh=MESH, collectives=(called, inserted))
    assert str(mixed).count("inserted by the compiler") == 1
    assert "    inserted by the compiler" in str(mixed)
    only = Trace(program="f", mesh=MESH, collectives=(inserted, inserted))
    assert "in 2 collective calls from 1 line, all inserted by the compiler" in str(only)


def test_of_very_many_lines_the_largest_are_shown():
    text = str(many_lines(90))
    assert "and 50 smaller groups of calls" in text
    assert "f32" not in text
    assert "bf16[90,64]" in text
    assert "bf16[1,64]" not in text


def test_a_program_that_sends_nothing_says_so():
    assert str(EMPTY) == ("nothing on mesh x=4, 4 devices\nno collective calls: nothing is sent")


def test_a_program_of_a_script_is_one_line_of_a_narrow_terminal():
    mesh = (("data", 4), ("stage", 1), ("model", 2), ("expert", 1))
    quiet = Trace(program="_init_fn", mesh=mesh, collectives=(), flops=2050.0)
    assert trace_line(quiet) == "_init_fn on data=4,model=2: sends nothing, computes 2.05 kFLOP"
    assert trace_line(Trace(program="f", mesh=(("x", 1),), collectives=())) == (
        "f on 1 device: sends nothing"
    )
    sending = replace(many_lines(3), program="step")
    assert trace_line(sending).startswith("step on ")
    assert " in 3 calls" in trace_line(sending)
    assert len(trace_line(sending)) < 78


class Balanced(HTMLParser):
    """Fails where tags do not close."""

    def __init__(self, html):
        super().__init__()
        self.open = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@every_trace
def test_html_is_well_formed_and_has_the_same_rows(trace):
    html = trace_html(trace, trace.estimate("h100"))
    Balanced(html)
    assert trace.program in html
    assert html.count("<svg") == (3 if trace.wire_bytes else 0)
    # For dark pages: no fixed colors outside the pictures, which have their own background.
    assert "background:#" not in html
    for group in group_calls(trace)[:5]:
        assert group.call.op in html


def test_names_cannot_break_out_of_the_markup():
    evil = "<script>alert(1)</script>"
    mesh = ((evil, 4),)
    one = call("psum", evil, (8,), mesh, source=SourceLocation(evil, 3, evil))
    trace = Trace(program=evil, mesh=mesh, collectives=(one,), notes=(evil,))
    for markup in (
        trace_html(trace, trace.estimate("h100")),
        trace.timeline_svg(),
        trace.traffic_svg(),
        trace.steps_svg(0),
        trace.estimate("h100")._repr_html_(),
    ):
        assert "<script>" not in markup


def texts(root):
    return [node.text for node in root.iter(f"{SVG}text")]


@every_trace
@pytest.mark.parametrize("hardware", [None, "h100"])
def test_the_timeline_is_well_formed_and_inside_its_frame(trace, hardware):
    estimate = trace.estimate(hardware) if hardware else None
    root = ET.fromstring(trace.timeline_svg(estimate))
    assert root.get("role") == "img"
    assert_inside_frame(root)
    for axes in dict.fromkeys(",".join(item.mesh_axes) for item in trace.collectives):
        assert axes in texts(root)


def test_the_timeline_keeps_program_order_and_adds_up():
    timeline = build_timeline(train_step(), train_step().estimate("tpu-v5p"))
    assert [bar.op for bar in timeline.bars] == [item.op for item in train_step().collectives]
    starts = [bar.start for bar in timeline.bars]
    assert starts == sorted(starts)
    assert timeline.bars[-1].end == pytest.approx(1)
    assert [phase for phase, _, _ in timeline.phase_runs()] == ["forward", "recompute", "backward"]
    assert timeline.amount_text(1) == "184 ms"
    assert build_timeline(train_step()).amount_text(1) == "32.1 GB"


def test_a_call_too_short_for_a_character_has_one_all_the_same():
    lines = list(timeline_lines(build_timeline(train_step()), 80))
    lane = next(line for line in lines if line[0].text.startswith("data "))
    assert {span.text for span in lane[1:]} == {"G", "S", "·"}


@every_trace
@pytest.mark.parametrize("width", [60, 80, 100])
def test_pictures_in_the_terminal_fit(trace, width):
    pictures = [trace.timeline_text(width), trace.traffic_text(width)]
    pictures += [trace.steps_text(index, width) for index in range(min(3, len(trace.collectives)))]
    for text in pictures:
        assert max(map(len, text.splitlines())) <= width


def test_traffic_is_by_axis_and_then_by_operation():
    traffic = traffic_by_axis(train_step())
    assert {axes: sum(ops.values()) for axes, ops in traffic.items()} == train_step().by_axis()
    assert list(traffic["data"]) == ["all_gather", "psum_scatter"]
    root = ET.fromstring(train_step().traffic_svg())
    assert "31.2 GB, 97 %" in texts(root)


def test_steps_show_what_each_device_receives():
    mesh = (("x", 3),)
    one = Trace(program="f", mesh=mesh, collectives=(call("all_gather", "x", (8,), mesh),))
    assert one.steps_text(0) == (
        """\
all_gather (all-gather) over x: bf16[8]
3 devices communicate in 2 steps of 16 bytes
each device sends 32 bytes: (g-1) p, p = 16 bytes, g = 3
x=3

What each device receives, and from which
↓ time   → x
         x=0       x=1       x=2
       ┌─────────┬─────────┬─────────┐
start  │ has #0  │ has #1  │ has #2  │
       ├─────────┼─────────┼─────────┤
step 1 │ gets #2 │ gets #0 │ gets #1 │
       │ from 2  │ from 0  │ from 1  │
       ├─────────┼─────────┼─────────┤
step 2 │ gets #1 │ gets #2 │ gets #0 │
       │ from 2  │ from 0  │ from 1  │
       └─────────┴─────────┴─────────┘
color: the chunk; at the end each device has every chunk"""
    )


@pytest.mark.parametrize("op", ["psum", "psum_scatter", "all_to_all", "ppermute", "pbroadcast"])
@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_steps_of_every_kind_and_size_are_drawn(op, size):
    mesh = (("x", size), ("y", 2))
    one = Trace(program="f", mesh=mesh, collectives=(call(op, "x", (64,), mesh),))
    assert len(one.steps_text(0, 80).splitlines()) < 60
    root = ET.fromstring(one.steps_svg(0))
    assert float(root.get("width")) < 1000


def test_a_device_that_receives_nothing_is_marked():
    mesh = (("x", 3),)
    one = call("ppermute", "x", (8,), mesh, details={"pairs": [[0, 1]]})
    assert "nothing" in Trace(program="f", mesh=mesh, collectives=(one,)).steps_text(0)


def test_memory_counts_aliased_bytes_once():
    trace = replace(
        EMPTY,
        memory=Memory(
            argument_bytes=1024, output_bytes=1024, temp_bytes=2048, alias_bytes=512, compiler="tpu"
        ),
    )
    assert "Memory per device: 3.6 kB, reported by XLA for tpu" in str(trace)


def test_a_trace_on_hardware_is_shown_with_its_time():
    trace = train_step().on("tpu-v5p", dcn=("data",))
    estimate = train_step().estimate("tpu-v5p", dcn=("data",))
    assert trace.timing == estimate
    assert str(trace) == trace_text(train_step(), estimate=estimate)
    assert "by time on tpu-v5p" in trace.timeline_text()
    assert "by time on tpu-v5p" in trace._repr_html_()
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


@pytest.mark.parametrize(
    "one", [train_step(), train_step().on("h100"), train_step().estimate("h100")]
)
def test_rich_prints_records_in_the_width_of_the_terminal(one):
    out = io.StringIO()
    Console(file=out, width=70).print(one)
    assert max(map(len, out.getvalue().splitlines())) <= 70


def test_a_trace_survives_json_and_is_drawn_the_same():
    trace = with_branches()
    assert str(Trace.from_json(json.loads(json.dumps(trace.to_json())))) == str(trace)


def test_the_html_report_has_bars_in_the_hues_of_the_mesh_axes_and_arrows():
    total = jax.shard_map(
        lambda x: lax.psum(lax.all_gather(x, "model").sum(), "data"),
        in_specs=P(("data", "model")),
        out_specs=P(),
        check_vma=False,
    )
    trace = shardlab.trace(total, "f32[64]", mesh="data=4,model=2")
    html = trace_html(trace)
    section = html[html.index("By mesh axis") : html.index("By operation")]
    for axis in ("data", "model"):
        color = op_paint("psum", [axis], trace.mesh).colors[0]
        row = section[section.index(f">{axis}<") :].split("</tr>")[0]
        assert f"light-dark({color.light},{color.dark})" in row
    assert "light-dark" not in html[html.index("By operation") :]  # no axis: no hue
    assert steps_svg(max(trace.collectives, key=lambda c: c.wire_bytes), trace.mesh) in html
    assert html.count("<svg") == 3


def test_a_narrow_screen_hides_bars_with_their_heads():
    # Otherwise the heads of the columns after a bar would be above other columns.
    columns = (Column(head="name"), Column(head="", is_bar=True), Column(head="bytes"))
    table = Table(columns, (Row(cells=("a", "██", "1")),))
    html = sheet_html(Sheet("", (), (Section("Sums", table),)))
    assert ".shardlab tr>.b{display:none}" in html
    head, row = html.split("<thead>")[1].split("</thead>")
    assert head.count('class="b"') == row.count('class="b"') == 1
