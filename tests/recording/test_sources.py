"""Programs as text: the gallery, edits that break a program, comparison, jit with shardings."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.checks.check_codes import CODES
from shardlab.errors import UnknownEdit
from shardlab.recording.comparison import compare_recordings
from shardlab.recording.edits import allow_unchecked, apply_edit, list_edits
from shardlab.recording.example_gallery import find_program, gallery_programs
from shardlab.recording.program_recording import record_source
from shardlab.recording.recording import Recording

SLUGS = [program.slug for program in gallery_programs()]


def record_gallery(slug, **options):
    program = find_program(slug)
    return record_source(program.source, target=program.target, mesh=program.mesh, **options)


@pytest.mark.parametrize("slug", SLUGS)
def test_every_program_of_the_gallery_is_recorded(slug):
    recording = record_gallery(slug)
    assert recording.steps
    assert recording.sources[0].name == "program.py"
    # The comparison with one device runs on a mesh that the program does not build.
    assert recording.program_mesh == ()
    is_deadlock = slug in ("deadlock_in_branch", "mismatched_collectives")
    assert (recording.failure is not None) == is_deadlock
    assert all(step.file == 0 and step.line > 0 for step in recording.steps)
    program = find_program(slug)
    assert program.title
    assert program.summary
    assert program.kind in ("pattern", "hazard")


def test_hazards_show_what_goes_wrong():
    assert any(value.disagrees for value in record_gallery("forgotten_psum").values)
    assert any(value.disagrees for value in record_gallery("wrong_axis").values)
    nan = record_gallery("nan_on_one_device")
    assert nan.values[nan.outputs[0].value].groups[0].n_nan > 0
    assert record_gallery("deadlock_in_branch").steps[-1].waiting is not None
    bias = record_gallery("bias_before_psum")
    assert bias.values[bias.outputs[0].value].groups[0].min == 8 + 4 * 100


@pytest.mark.parametrize("slug", SLUGS)
def test_full_findings_explain_each_hazard_and_no_pattern(slug):
    recording = record_gallery(slug, findings="full")
    # A NaN is seen in the values; the program is the same on one device.
    is_explained = find_program(slug).kind == "hazard" and slug != "nan_on_one_device"
    assert bool(recording.findings) == is_explained
    assert any("one device" in note for note in recording.notes) == (slug == "pipeline")


# The program of the gallery that shows each hazard of `shardlab check`.
HAZARD_PROGRAMS = {
    "hazard.deadlock": "deadlock_in_branch",
    "hazard.mismatched_collectives": "mismatched_collectives",
    "hazard.replicas_differ": "forgotten_psum",
    "hazard.mesh_dependent": "psum_twice",
    "hazard.psum_of_replicated": "psum_of_gradient",
    "hazard.ppermute_axis_order": "permutation_axis_order",
    "hazard.constraint_replicates": "constraint_replicates",
}


def test_the_gallery_has_a_program_for_every_hazard():
    assert set(HAZARD_PROGRAMS) == {code for code in CODES if code.startswith("hazard.")}


@pytest.mark.parametrize("code", HAZARD_PROGRAMS)
def test_each_hazard_is_found_on_the_programs_own_mesh(code):
    recording = record_gallery(HAZARD_PROGRAMS[code], findings="full")
    assert [finding.code for finding in recording.findings] == [code]
    (finding,) = recording.findings
    assert (finding.file, finding.line > 0) == (0, True)


PSUM = """import jax
from jax.sharding import PartitionSpec as P

def body(x):
    total = jax.lax.psum(
        x.sum(),
        "data",
    )
    return total

def f(x):
    return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

f_args = ("f32[8]",)
"""


def test_edits_keep_the_number_of_lines():
    edits = list_edits(PSUM, ["data", "model"])
    assert [edit.kind for edit in edits] == ["remove_collective", "skip_on_one_device", "swap_axis"]
    for edit in edits:
        changed = apply_edit(PSUM, edit.id, ["data", "model"])
        assert changed != PSUM
        assert len(changed.splitlines()) == len(PSUM.splitlines())
        assert changed.splitlines()[8:] == PSUM.splitlines()[8:]
        compile(changed, "program.py", "exec")


def test_an_unknown_edit_is_an_error_of_the_request():
    with pytest.raises(UnknownEdit, match="no edit"):
        record_source(PSUM, mesh="data=4", edit="remove_collective:99:0")


def test_text_that_cannot_be_parsed_has_no_edits():
    assert list_edits("def broken(:", ["data"]) == ()


def test_unchecked_shard_maps_keep_their_other_options():
    changed = allow_unchecked(PSUM)
    assert "out_specs=P(), check_vma=False)(x)" in changed
    assert allow_unchecked(changed) == changed


def test_a_removed_psum_shows_copies_that_differ_and_the_words_of_jax():
    recording = record_source(PSUM, mesh="data=4", edit=list_edits(PSUM, ["data"])[0].id)
    assert recording.failure is None
    assert recording.values[recording.outputs[0].value].disagrees
    assert "JAX itself rejects this edit" in recording.notes[0]


def test_a_psum_skipped_on_one_device_blocks_the_others():
    recording = record_source(PSUM, mesh="data=4", edit=list_edits(PSUM, ["data"])[1].id)
    assert recording.failure.kind == "deadlock"
    assert recording.steps[-1].waiting.devices == "1-3"
    assert recording.steps[-1].waiting.missing == "0"


def test_a_swapped_axis_is_a_collective_gained_and_one_lost():
    program = find_program("megatron_mlp")
    names = ["data", "model"]
    (edit,) = [e for e in list_edits(program.source, names) if e.kind == "swap_axis"]
    first, second = record_gallery("megatron_mlp"), record_gallery("megatron_mlp", edit=edit.id)
    comparison = compare_recordings(first, second)
    assert [(c.op, c.axes) for c in comparison.gained] == [("psum", ("data",))]
    assert [(c.op, c.axes) for c in comparison.lost] == [("psum", ("model",))]
    assert comparison.figures["wire_bytes"].difference == 32 - 48
    assert comparison.difference.op.startswith("psum")
    assert compare_recordings(first, first).difference is None
    assert comparison.to_json()["gained"][0]["op"] == "psum"


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("x = (", "syntax", 1),
        ("import jax\nraise ValueError('mine')\n", "error", 2),
        ("import jax\nx = 1\n", "error", 0),
        (PSUM.replace('P("data")', 'P("rows")'), "rejected", 12),
    ],
)
def test_what_goes_wrong_in_the_program_is_the_failure(source, kind, line):
    recording = record_source(source, mesh="data=4")
    assert (recording.failure.kind, recording.failure.line) == (kind, line)
    assert recording.steps == ()
    assert recording.sources[0].text == source


def test_a_script_is_recorded_through_its_own_calls():
    script = PSUM.replace('f_args = ("f32[8]",)', "") + (
        "import jax.numpy as jnp\nprint(jax.jit(f)(jnp.arange(8.0)))\n"
    )
    script = script.replace(
        "in_specs=",
        "mesh=jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)), in_specs=",
    )
    recording = record_source(script, mesh="data=4")
    assert recording.mesh == (("data", 4),)
    assert recording.values[recording.outputs[0].value].groups[0].mean == 28.0
    assert recording.output == "28.0\n"


PRINTS = PSUM.replace(
    "    return total",
    '    print("traced")\n    jax.debug.print("sum {}", total)\n    return total',
)


def test_what_the_program_prints_is_in_the_recording():
    recording = record_source('print("\\x1b[31mhere")\n' + PRINTS, mesh="data=4")
    lines = recording.output.splitlines()
    assert lines[:2] == ["?[31mhere", "traced"]
    assert [line.split(" sum ")[0] for line in lines[2:]] == [f"[data={i}]" for i in range(4)]
    assert Recording.from_json(recording.to_json()).output == recording.output


def test_full_findings_print_nothing_again():
    static = record_source(PRINTS, mesh="data=4")
    assert record_source(PRINTS, mesh="data=4", findings="full").output == static.output


def test_a_program_that_fails_has_its_output_too():
    recording = record_source("print('before')\nraise ValueError('mine')\n", mesh="data=4")
    assert recording.output == "before\n"


def test_long_output_is_shortened():
    recording = record_source("for i in range(100_000):\n    print(i)\n" + PSUM, mesh="data=4")
    assert len(recording.output) == 20_000
    assert recording.output.endswith("... and more")


def test_a_file_without_output_still_loads():
    data = record_source(PSUM, mesh="data=4").to_json()
    del data["output"]
    assert Recording.from_json(data).output == ""


def test_a_mesh_with_other_axes_leaves_the_program_on_its_own():
    recording = record_source(find_program("data_parallel").source, mesh="rows=4")
    assert recording.mesh == (("data", 4),)
    assert any("its own mesh" in note for note in recording.notes)


EIGHT = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

mesh = MESH

@jax.jit
def f(x):
    return x * 2

f(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("data"))))
"""


@pytest.mark.parametrize(
    "mesh",
    [
        'jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))',
        'jax.make_mesh((8,), ("data",))',
        'Mesh(jax.devices()[:8], ("data",))',
    ],
    ids=["Auto", "Explicit", "Mesh"],
)
def test_a_note_names_the_mesh_that_the_program_builds_and_the_one_used(mesh):
    text = EIGHT.replace("MESH", mesh)
    recording = record_source(text, mesh="data=4")
    assert recording.mesh == (("data", 4),)
    assert recording.program_mesh == (("data", 8),)
    assert (
        recording.notes[0]
        == "The program builds the mesh data=8 and ran on the mesh given, data=4."
    )
    assert Recording.from_json(recording.to_json()).program_mesh == (("data", 8),)
    for same in (None, "data=8"):
        recording = record_source(text, mesh=same)
        assert (recording.program_mesh, recording.notes) == ((), ())


def test_record_of_a_function_notes_the_replaced_mesh():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    recording = shardlab.record(total, jax.numpy.arange(8.0), mesh="data=4")
    assert (recording.mesh, recording.program_mesh) == ((("data", 4),), (("data", 8),))


def test_a_jit_shows_the_partial_sums_before_the_compilers_all_reduce():
    recording = record_gallery("jit_with_shardings")
    assert [step.op for step in recording.steps] == [
        "dot_general",
        "tanh",
        "dot_general",
        "all_reduce",
    ]
    product = recording.values[recording.steps[2].writes[0]]
    assert product.partial_over == ("model",)
    total = recording.values[recording.steps[3].writes[0]]
    assert (total.spec, total.shape, total.n_groups) == ("P('data', None)", (2, 4), 2)
    collective = recording.steps[3].collective
    assert (collective.op, collective.axes) == ("psum", ("model",))
    # The terms of each group of devices along model add up to the result.
    for group in total.groups:
        devices = [int(group.devices.split("-")[0]) + i for i in range(4)]
        terms = [product.group_of(device).cells.numbers() for device in devices]
        sums = [sum(column) for column in zip(*terms, strict=True)]
        assert sums == pytest.approx(group.cells.numbers(), rel=1e-5)


CONSTRAINT = """import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

def f(x):
    y = x * 2
    return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P()))

def f_args():
    return (jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("data"))),)
"""


def test_a_constraint_that_gathers_is_an_all_gather():
    recording = record_source(CONSTRAINT, mesh="data=4")
    collectives = [s.collective for s in recording.steps if s.collective]
    assert [(c.op, c.axes, c.wire_bytes) for c in collectives] == [("all_gather", ("data",), 24)]
    (first, *_) = recording.inputs
    value = recording.values[first.value]
    assert value.spec == "P('data')"
    assert [group.slice for group in value.groups] == [((i, i + 2),) for i in range(0, 8, 2)]


def test_a_decorated_shard_map_has_the_line_of_its_definition():
    source = (
        "from functools import partial\n"
        "import jax, jax.numpy as jnp\n"
        "from jax.sharding import PartitionSpec as P\n"
        "@partial(jax.shard_map, in_specs=P('data'), out_specs=P())\n"
        "def step(x):\n"
        "    return jax.lax.psum(x, 'data')\n"
        "def step_args():\n"
        "    return (jnp.arange(8.0),)\n"
    )
    recording = record_source(source, mesh="data=4", target="step")
    lines = {step.op: step.line for step in recording.steps}
    assert lines["enter shard_map"] == lines["leave shard_map"] == 4
    assert lines["psum_invariant"] == 6


BRANCH = """
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

@jax.jit
def f(x):
    def body(x):
        return lax.cond(x.sum() > -1, lambda x: lax.psum(x, "data"), lambda x: x * 4, x)
    spec = P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

f(jnp.ones(8))
"""


def test_a_finding_about_a_call_of_the_text_names_the_parameter():
    (finding,) = record_source(BRANCH, mesh="data=4").findings
    assert "which devices take which branch depends on the values of 'x'" in finding.shows
