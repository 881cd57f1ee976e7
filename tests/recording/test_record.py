"""Recordings of programs: steps, values by group of devices, collectives, failures, size."""

from __future__ import annotations

import html
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.errors import InvalidRecording, ProgramRejected
from shardlab.recording.device_sets import parse_device_set
from shardlab.recording.finish_recording import fit_to_size
from shardlab.recording.recording import Recording, load_recording


def training_step(n_layers=2):
    """Return a step of FSDP: weights and gradients are sharded over data, the batch over both."""

    def loss(params, x, y):
        def body(params, x, y):
            for w in params:
                full = lax.all_gather(w, "data", axis=0, tiled=True)
                x = jnp.tanh(x @ full)
            return lax.pmean(((x - y) ** 2).mean(), ("data", "model"))

        batch = P(("data", "model"))
        specs = ([P("data")] * n_layers, batch, batch)
        return jax.shard_map(body, in_specs=specs, out_specs=P())(params, x, y)

    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def find_steps(recording, op):
    return [step for step in recording.steps if step.op.removesuffix("_invariant") == op]


def written(recording, step):
    return recording.values[step.writes[0]]


def shard_map(body, **options):
    return jax.shard_map(body, **{"in_specs": P("data"), "out_specs": P(), **options})


def test_partial_sums_become_one_value():
    def body(x):
        local = x.sum()
        return lax.psum(local, "data")

    recording = shardlab.record(shard_map(body), jnp.arange(8.0), mesh="data=4")
    local = written(recording, find_steps(recording, "reduce_sum")[0])
    assert local.name == "local"
    assert (local.type, local.partial_over, local.varies_over) == (
        "f32[]{V:data}",
        ("data",),
        ("data",),
    )
    assert [group.cells.numbers() for group in local.groups] == [(1.0,), (5.0,), (9.0,), (13.0,)]
    (psum,) = find_steps(recording, "psum")
    assert psum.collective.groups == ((0, 1, 2, 3),)
    total = written(recording, psum)
    assert [(g.devices, g.n, g.mean) for g in total.groups] == [("0-3", 4, 28.0)]
    assert total.partial_over == ()


def test_each_step_has_the_line_that_computes_it():
    def body(x):
        doubled = x * 2
        return lax.psum(doubled, "data")

    recording = shardlab.record(shard_map(body), jnp.arange(8.0), mesh="data=4")
    (step,) = find_steps(recording, "mul")
    assert step.code == "doubled = x * 2"
    lines = recording.sources[step.file].text.splitlines()
    assert lines[step.line - 1].strip() == step.code
    assert recording.sources[step.file].name == "test_record.py"


def test_a_function_of_jax_is_one_step_at_its_own_line():
    def body(x):
        first = jnp.where(x > 1, x, 0.0)
        second = jnp.where(x > 2, x, first)
        return lax.psum(second, "data")

    recording = shardlab.record(shard_map(body), jnp.arange(8.0), mesh="data=4")
    steps = find_steps(recording, "where")
    assert [step.code.split(" ")[0] for step in steps] == ["first", "second"]


def test_the_backward_pass_has_its_phase_and_its_sums():
    recording = shardlab.record(
        training_step(1), ["f32[8,8]"], "f32[16,8]", "f32[16,8]", mesh="data=4,model=2"
    )
    phases = [step.phase for step in recording.steps]
    assert phases[0] == "forward"
    assert "backward" in phases
    (scatter,) = [
        s for s in recording.steps if s.collective and s.collective.op == "reduce_scatter"
    ]
    assert scatter.phase == "backward"
    assert recording.values[scatter.reads[0]].partial_over == ("data",)


def test_loops_have_one_step_per_iteration():
    def body(x):
        def tick(carry, row):
            return carry + row, carry

        return lax.scan(tick, jnp.zeros_like(x[0]), x)[0]

    recording = shardlab.record(
        shard_map(body, in_specs=P(None, "data"), out_specs=P("data")),
        jnp.arange(24.0).reshape(3, 8),
        mesh="data=4",
    )
    adds = find_steps(recording, "add")
    assert [step.loop[0][2:] for step in adds] == [(0, 3), (1, 3), (2, 3)]
    assert [step.loop[0][0] for step in adds] == ["scan"] * 3
    means = [written(recording, step).groups[0].mean for step in adds]
    assert means == [0.5, 9.0, 25.5]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_scan_is_recorded_in_part_and_computed_in_full(reverse):
    def body(x):
        def tick(carry, row):
            new = carry * 0.5 + row
            return new, new

        last, rows = lax.scan(tick, jnp.zeros_like(x[0]), x, reverse=reverse)
        return last, rows

    function = shard_map(body, in_specs=P(None, "data"), out_specs=(P("data"), P(None, "data")))
    x = jnp.arange(160.0).reshape(20, 8)
    recording = shardlab.record(function, x, mesh="data=4")
    iterations = [step.loop[0][2] for step in find_steps(recording, "mul")]
    assert iterations == [*range(8), 19]
    assert any("iterations" in note for note in recording.notes)
    expected = np.zeros(8)
    for row in reversed(np.asarray(x)) if reverse else np.asarray(x):
        expected = expected * 0.5 + row
    last = recording.values[recording.outputs[0].value]
    numbers = [n for group in last.groups for n in group.cells.numbers()]
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


def test_a_while_loop_knows_its_length_at_its_end():
    def body(x):
        return lax.while_loop(lambda c: (c < 30).all(), lambda c: c * 2, x + 1)

    recording = shardlab.record(
        shard_map(body, out_specs=P("data"), check_vma=False), jnp.arange(8.0), mesh="data=4"
    )
    (first, *_) = find_steps(recording, "mul")
    assert first.loop[0][0] == "while"
    assert first.loop[0][3] == 4  # device 0 has 1 and 2, which doubles to 32 after 4 iterations
    assert first.branch is None


def test_a_branch_shows_the_devices_that_take_it():
    def body(x):
        return lax.cond(x.sum() > 6, lambda x: x * 2, lambda x: x - 1, x)

    recording = shardlab.record(
        shard_map(body, out_specs=P("data")), jnp.arange(8.0), mesh="data=4"
    )
    (mul,), (sub,) = find_steps(recording, "mul"), find_steps(recording, "sub")
    assert (mul.branch.taken_by, sub.branch.taken_by) == ("2-3", "0-1")
    devices = [
        d for group in written(recording, mul).groups for d in parse_device_set(group.devices)
    ]
    assert sorted(devices) == [2, 3]


def test_a_branch_that_all_devices_take_is_no_branch():
    def body(x):
        return lax.cond(lax.pmax(x, "data").sum() > 0, lambda x: x * 2, lambda x: x - 1, x)

    recording = shardlab.record(
        shard_map(body, out_specs=P("data")), jnp.arange(8.0), mesh="data=4"
    )
    assert find_steps(recording, "sub") == []
    assert find_steps(recording, "mul")[0].branch is None


def test_a_deadlock_ends_the_recording_with_who_waits():
    def body(x):
        return lax.cond(x.sum() > 6, lambda x: lax.psum(x, "data"), lambda x: x, x)

    recording = shardlab.record(
        shard_map(body, out_specs=P("data"), check_vma=False), jnp.arange(8.0), mesh="data=4"
    )
    assert recording.failure.kind == "deadlock"
    last = recording.steps[-1]
    assert (last.waiting.devices, last.waiting.missing) == ("2-3", "0-1")
    assert (recording.failure.file, recording.failure.line) == (last.file, last.line)
    assert recording.outputs == ()
    assert "hazard.deadlock" in [finding.code for finding in recording.findings]


def test_copies_that_out_specs_calls_equal_and_that_differ_disagree():
    recording = shardlab.record(
        shard_map(lambda x: x.sum(), check_vma=False), jnp.arange(8.0), mesh="data=4"
    )
    output = recording.values[recording.outputs[0].value]
    assert output.disagrees
    assert output.n_groups == 4
    right = shardlab.record(
        shard_map(lambda x: lax.psum(x.sum(), "data")), jnp.arange(8.0), mesh="data=4"
    )
    assert not any(value.disagrees for value in right.values)


def test_nan_and_infinity_survive_json():
    def body(x):
        return lax.psum(1 / x, "data")

    x = jnp.array([0.0, 1.0, jnp.nan, 4.0])
    recording = shardlab.record(shard_map(body), x, mesh="data=4")
    text = recording.to_json_text()
    assert '"Infinity"' in text
    json.loads(text, parse_constant=pytest.fail)  # called for a bare NaN or Infinity
    value = written(recording, find_steps(recording, "div")[0])
    assert value.groups[0].max == float("inf")
    assert [group.n_nan for group in value.groups] == [0, 0, 1, 0]
    assert Recording.from_json(json.loads(text)) == recording


def test_json_round_trip_and_files(tmp_path):
    recording = shardlab.record(
        training_step(), ["f32[8,8]"] * 2, "f32[16,8]", "f32[16,8]", mesh="data=4,model=2"
    )
    assert Recording.from_json(json.loads(recording.to_json_text())) == recording
    for name in ("step.json", "step.shardlab.json.gz"):
        assert load_recording(recording.save(tmp_path / name)) == recording


def test_a_file_that_is_no_recording_is_rejected(tmp_path):
    file = tmp_path / "other.json"
    file.write_text('{"format": "something else"}')
    with pytest.raises(InvalidRecording, match="not a recording"):
        load_recording(file)
    file.write_bytes(b"\x1f\x8bdamaged")
    with pytest.raises(InvalidRecording):
        load_recording(file)


def test_a_training_step_on_512_devices_is_small_and_grouped():
    recording = shardlab.record(
        training_step(),
        ["f32[64,64]"] * 2,
        "f32[1024,64]",
        "f32[1024,64]",
        mesh="data=64,model=8",
    )
    assert len(recording.to_json_text()) <= 2_000_000
    weight = recording.values[recording.steps[0].writes[0]]
    assert weight.n_groups == 64
    assert {group.n for group in weight.groups} == {8}  # one copy per device along model
    batch = recording.values[recording.steps[0].writes[2]]
    assert batch.n_groups == 512
    assert len(batch.groups) < 512
    assert batch.device_means.shape == (512,)
    (loss,) = [v for v in recording.values if v.id == recording.outputs[-1].value]
    assert [(group.devices, group.n) for group in loss.groups] == [("0-511", 512)]


def test_large_values_are_block_means():
    recording = shardlab.record(
        shard_map(lambda x: lax.psum(x, "data")), jnp.ones((400, 300)), mesh="data=4"
    )
    value = recording.values[recording.steps[0].writes[0]]
    (group,) = value.groups
    assert value.shape == (100, 300)
    assert (group.cells.of, group.cells.shape) == ("block mean", (32, 32))
    assert set(group.cells.numbers()) == {1.0}


def test_the_page_is_one_file_without_addresses(tmp_path):
    recording = shardlab.record(
        shard_map(lambda x: lax.psum(x, "data")), jnp.arange(4.0), mesh="data=4"
    )
    recording = Recording.from_json(
        {**recording.to_json(), "title": "</script><script>alert(1)</script>\u2028"}
    )
    page = recording.save_html(tmp_path / "step.html").read_text()
    data = re.search(r'id="recording">(.*?)</script>', page, re.DOTALL)[1]
    assert Recording.from_json(json.loads(data)) == recording
    assert "<script>alert" not in page
    assert "\u2028" not in page.split('id="recording">')[1].split("</script>")[0]
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page)
    assert "default-src 'none'" in page


def test_perfetto_has_a_lane_per_mesh_axis():
    recording = shardlab.record(
        training_step(1), ["f32[8,8]"], "f32[16,8]", "f32[16,8]", mesh="data=4,model=2"
    )
    trace = recording.to_perfetto()
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["compute", "mesh axis data", "mesh axis model"]
    gathers = [e for e in trace["traceEvents"] if e["name"] == "all_gather"]
    assert gathers[0]["tid"] == 1
    assert gathers[0]["dur"] > 0
    json.dumps(trace)


def test_a_recording_is_a_notebook_output():
    recording = shardlab.record(
        shard_map(lambda x: lax.psum(x, "data")), jnp.arange(4.0), mesh="data=4"
    )
    data = recording._repr_mimebundle_(include=None, exclude=None)  # as IPython calls it
    assert data["text/plain"] == str(recording)
    # The page is in the output itself: a notebook shows it again without its kernel.
    frame, _, rest = data["text/html"].partition("</iframe>")
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    assert page == recording.to_html()
    assert 'sandbox="allow-scripts"' in frame
    # Without frames, as on GitHub, there is the summary.
    assert "1 collective</summary>" in rest
    assert "psum over data" in rest


def test_a_recording_is_an_anywidget_on_request():
    recording = shardlab.record(
        shard_map(lambda x: lax.psum(x, "data")), jnp.arange(4.0), mesh="data=4"
    )
    widget = recording.widget()
    assert widget.page == recording.to_html()
    assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()[0]


def test_max_steps_truncates_the_steps_and_not_the_result():
    def body(x):
        for _ in range(10):
            x = x * 1.5
        return lax.psum(x, "data")

    recording = shardlab.record(shard_map(body), jnp.arange(4.0), mesh="data=4", max_steps=5)
    assert len(recording.steps) == 5
    assert recording.truncated
    output = recording.values[recording.outputs[0].value]
    np.testing.assert_allclose(output.groups[0].mean, 6 * 1.5**10, rtol=1e-6)


def test_a_program_without_a_mesh_is_rejected_with_a_fix():
    with pytest.raises(ProgramRejected) as rejection:
        shardlab.record(shard_map(lambda x: lax.psum(x, "data")), jnp.arange(4.0))
    assert "no mesh is set" in rejection.value.what
    assert "mesh='data=8'" in rejection.value.fix
    assert "test_record.py" in rejection.value.where

    constrained = jax.jit(lambda x: lax.with_sharding_constraint(x, P("data")))
    with pytest.raises(ProgramRejected, match="no mesh is set"):
        shardlab.record(constrained, jnp.arange(4.0))


def test_an_exception_of_the_program_itself_is_not_a_rejection():
    def fail(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as error:
        shardlab.record(fail, jnp.arange(4.0), mesh="data=4")
    assert not isinstance(error.value, ProgramRejected)


def test_a_large_recording_is_reduced_until_its_json_fits():
    recording = shardlab.record(
        shard_map(lambda x: lax.psum(x * 2, "data")),
        jnp.arange(16.0 * 40).reshape(16, 40),
        mesh="data=16",
    )
    n_bytes = len(recording.to_json_text())
    assert fit_to_size(recording, n_bytes) is recording
    for limit in (n_bytes - 1, n_bytes * 3 // 4):
        reduced = fit_to_size(recording, limit)
        assert len(reduced.to_json_text()) <= limit
        assert len(reduced.steps) == len(recording.steps)
        assert [value.type for value in reduced.values] == [v.type for v in recording.values]
    least = fit_to_size(recording, 1)  # the last level, though it does not fit either
    assert max(len(value.groups) for value in least.values) == 4
