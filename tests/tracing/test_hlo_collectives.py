"""Difficult cases of HLO text, each in a few lines of it."""

from __future__ import annotations

import pytest

from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.tracing.hlo.hlo_collectives import hlo_collectives
from shardlab.tracing.hlo.hlo_module import parse_module

HEAD = "HloModule jit_f, num_partitions=8"
ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
%max (x: f32[], y: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %larger = f32[] maximum(%x.1, %y.1)
}
"""
DATA = "channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true"
MODEL = "channel_id=2, replica_groups=[2,4]<=[8], use_global_device_ids=true"


def read(body, more="", head=HEAD, **options):
    lines = [*head.splitlines(), *ADD.splitlines(), *more.splitlines()]
    lines += ["ENTRY %main (p: f32[4,6]) -> f32[4,6] {", *body.strip().splitlines(), "}"]
    return hlo_collectives(parse_module(lines), **options)


def ops(collectives):
    return [(item.op, item.operand.shape, item.result.shape, item.count) for item in collectives]


# ------------------------------------------------------------- 1: all-reduce and slice is scatter

# Device ids -> place along 'data', and along 'model'; place -> offset.
SLICED = """
  %p = f32[4,6]{{1,0}} parameter(0)
  %all-reduce.1 = f32[4,6]{{1,0}} all-reduce(%p), {groups}, to_apply=%add
  %zero = s32[] constant(0)
  %id = u32[] partition-id()
  %where = u32[8]{{0}} constant({table})
  %place = u32[1]{{0}} dynamic-slice(%where, %id), dynamic_slice_sizes={{1}}
  %index = u32[] reshape(%place)
  %offsets = s32[2]{{0}} constant({{0, 2}})
  %offset = s32[1]{{0}} dynamic-slice(%offsets, %index), dynamic_slice_sizes={{1}}
  %start = s32[] reshape(%offset)
  %s = f32[2,6]{{1,0}} dynamic-slice(%all-reduce.1, %start, %zero), dynamic_slice_sizes={{2,6}}
  {last}
"""
BY_DATA = "{0, 0, 0, 0, 1, 1, 1, 1}"
BY_PARITY = "{0, 1, 0, 1, 0, 1, 0, 1}"
ROOT = "ROOT %t = (f32[2,6]{1,0}) tuple(%s)"


@pytest.mark.parametrize(
    ("table", "last", "op", "shape"),
    [
        (BY_DATA, ROOT, "psum_scatter", (2, 6)),
        ("{...}", ROOT, "psum_scatter", (2, 6)),  # left out: the sizes decide
        # Sliced along another axis than summed over.
        (BY_PARITY, ROOT, "psum", (4, 6)),
        # Somebody needs all of it.
        (
            BY_DATA,
            "ROOT %t = (f32[2,6]{1,0}, f32[4,6]{1,0}) tuple(%s, %all-reduce.1)",
            "psum",
            (4, 6),
        ),
    ],
)
def test_a_sum_of_which_each_device_keeps_its_shard_is_a_reduce_scatter(table, last, op, shape):
    (collective,) = read(SLICED.format(groups=DATA, table=table, last=last))
    assert (collective.op, collective.operand.shape, collective.result.shape) == (op, (4, 6), shape)


def test_a_slice_at_a_constant_offset_is_no_reduce_scatter():
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %all-reduce.1 = f32[4,6]{1,0} all-reduce(%p), GROUPS, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %s = f32[2,6]{1,0} dynamic-slice(%all-reduce.1, %zero, %zero), dynamic_slice_sizes={2,6}
""".replace("GROUPS", DATA)
    assert ops(read(body)) == [("psum", (4, 6), (4, 6), 1)]


def test_a_combined_sum_is_one_call_per_operand():
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %q = f32[] constant(3)
  %all-reduce.1 = (f32[4,6]{1,0}, f32[]) all-reduce(%p, %q), GROUPS, to_apply=%add
  ROOT %g = f32[4,6]{1,0} get-tuple-element(%all-reduce.1), index=0
""".replace("GROUPS", DATA)
    assert ops(read(body)) == [("psum", (4, 6), (4, 6), 1), ("psum", (), (), 1)]


# ------------------------------------------------------------------------------ merged and equal

TWO_SUMS = """
  %p = f32[4,6]{{1,0}} parameter(0)
  %q = f32[4,6]{{1,0}} sine(%p)
  %all-reduce.1 = f32[4,6]{{1,0}} all-reduce(%p), {model}, to_apply=%add
  %all-reduce.2 = f32[4,6]{{1,0}} all-reduce(%q), {other}, to_apply=%add
  {last}
"""
ADDED = "ROOT %c = f32[4,6]{1,0} add(%all-reduce.1, %all-reduce.2)"


def test_sums_that_are_only_added_are_merged():
    (collective,) = read(TWO_SUMS.format(model=MODEL, other=MODEL, last=ADDED))
    assert (collective.op, collective.n_sums) == ("psum", 2)


@pytest.mark.parametrize(
    ("other", "last"),
    [
        (DATA, ADDED),  # over other devices
        (MODEL, "ROOT %c = f32[4,6]{1,0} multiply(%all-reduce.1, %all-reduce.2)"),
        (
            MODEL,
            "%c = f32[4,6]{1,0} add(%all-reduce.1, %all-reduce.2)\n"
            "ROOT %d = f32[4,6]{1,0} add(%c, %all-reduce.1)",
        ),
    ],
)
def test_sums_that_are_used_separately_are_not_merged(other, last):
    collectives = read(TWO_SUMS.format(model=MODEL, other=other, last=last))
    assert [item.n_sums for item in collectives] == [1, 1]


def test_a_value_that_is_gathered_twice_is_gathered_once():
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %all-gather.1 = f32[8,6]{1,0} all-gather(%p), GROUPS, dimensions={0}
  %all-gather.2 = f32[8,6]{1,0} all-gather(%p), OTHER, dimensions={0}
  ROOT %c = f32[8,6]{1,0} add(%all-gather.1, %all-gather.2)
"""
    again = "channel_id=9, replica_groups=mesh['x'=2,'y'=4] {'x'}, use_global_device_ids=true"
    collectives = read(body.replace("GROUPS", DATA).replace("OTHER", again))
    assert ops(collectives) == [("all_gather", (4, 6), (8, 6), 1)]


def test_values_computed_from_equal_values_are_equal():
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %all-reduce.1 = f32[4,6]{1,0} all-reduce(%p), channel_id=1, GROUPS, to_apply=%add
  %all-reduce.2 = f32[4,6]{1,0} all-reduce(%p), channel_id=2, GROUPS, to_apply=%add
  %s.1 = f32[4,6]{1,0} sine(%all-reduce.1), metadata={op_name="forward"}
  %s.2 = f32[4,6]{1,0} sine(%all-reduce.2), metadata={op_name="backward"}
  %all-reduce.3 = f32[4,6]{1,0} all-reduce(%s.1), channel_id=3, GROUPS, to_apply=%max
  %all-reduce.4 = f32[4,6]{1,0} all-reduce(%s.2), channel_id=4, GROUPS, to_apply=%max
  ROOT %c = f32[4,6]{1,0} multiply(%all-reduce.3, %all-reduce.4)
""".replace("GROUPS", "replica_groups=[2,4]<=[8], use_global_device_ids=true")
    assert [item.op for item in read(body)] == ["psum", "pmax"]


def test_a_recomputation_behind_a_barrier_communicates_again():
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %q = f32[4,6]{1,0} opt-barrier(%p)
  %all-reduce.1 = f32[4,6]{1,0} all-reduce(%p), GROUPS, to_apply=%add
  %all-reduce.2 = f32[4,6]{1,0} all-reduce(%q), GROUPS, to_apply=%add
  ROOT %c = f32[4,6]{1,0} multiply(%all-reduce.1, %all-reduce.2)
""".replace("GROUPS", MODEL)
    assert [item.op for item in read(body)] == ["psum", "psum"]


def test_a_tpu_collective_in_chunks_is_one():
    fusions = """
%fused_computation.1 (a: f32[4,6]) -> f32[8,6] {
  %a = f32[4,6]{1,0:T(8,128)S(1)} parameter(0)
  ROOT %g.1 = f32[8,6]{1,0:T(8,128)} all-gather(%a), GROUPS, CHAIN
}
%fused_computation.2 (b: f32[4,6]) -> f32[8,6] {
  %b = f32[4,6]{1,0:T(8,128)S(1)} parameter(0)
  ROOT %g.2 = f32[8,6]{1,0:T(8,128)} all-gather(%b), GROUPS, CHAIN
}
"""
    chain = 'dimensions={0}, frontend_attributes={chain_id="0"}'
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %f = f32[8,6]{1,0} fusion(%p), kind=kCustom, calls=%fused_computation.1
  ROOT %g = f32[8,6]{1,0} fusion(%p), kind=kCustom, calls=%fused_computation.2
"""
    collectives = read(body, fusions.replace("GROUPS", DATA).replace("CHAIN", chain))
    assert ops(collectives) == [("all_gather", (4, 6), (8, 6), 1)]


# --------------------------------------------------------------------------------------- loops

LOOP = """
%body (state: (s32[], f32[4,6])) -> (s32[], f32[4,6]) {{
  %state = (s32[], f32[4,6]{{1,0}}) parameter(0)
  {parts}
  %step = s32[] constant({step})
  %next = s32[] add({i}, %step)
  %r = f32[4,6]{{1,0}} all-reduce({x}), {groups}, to_apply=%max
  ROOT %out = (s32[], f32[4,6]{{1,0}}) tuple(%next, %r)
}}
%test (state.1: (s32[], f32[4,6])) -> pred[] {{
  %state.1 = (s32[], f32[4,6]{{1,0}}) parameter(0)
  {test}
}}
"""
# Older text takes tuples apart; newer text writes %state#0.
OLDER = {
    "parts": "%i = s32[] get-tuple-element(%state), index=0\n"
    "%x = f32[4,6]{1,0} get-tuple-element(%state), index=1",
    "i": "%i",
    "x": "%x",
}
NEWER = {"parts": "", "i": "%state#0", "x": "%state#1"}
LESS = "%end = s32[] constant(12)\nROOT %go = pred[] compare(%state.1#0, %end), direction=LT"
WHILE = """
  %p = f32[4,6]{1,0} parameter(0)
  %from = s32[] constant(2)
  %first = (s32[], f32[4,6]{1,0}) tuple(%from, %p)
  %loop = (s32[], f32[4,6]{1,0}) while(%first), condition=%test, body=%bodyEXTRA
  ROOT %last = f32[4,6]{1,0} get-tuple-element(%loop), index=1
"""
NOTED = ', backend_config={"known_trip_count":{"n":"7"}}'
UNKNOWN = "ROOT %go = pred[] constant(true)"


@pytest.mark.parametrize("parts", [OLDER, NEWER], ids=["older", "newer"])
@pytest.mark.parametrize(
    ("step", "test", "extra", "count"),
    [
        (1, LESS, "", 10),
        (4, LESS, "", 3),
        (1, LESS.replace("LT", "LE"), "", 11),
        (1, LESS.replace("LT", "NE"), "", 10),
        (1, LESS.replace("%state.1#0, %end", "%end, %state.1#0").replace("LT", "GT"), "", 10),
        (-1, LESS, "", None),
        (1, UNKNOWN, "", None),
        (1, UNKNOWN, NOTED, 7),
    ],
)
def test_the_trip_count_follows_from_the_condition(parts, step, test, extra, count):
    loop = LOOP.format(step=step, test=test, groups=DATA, **parts)
    (collective,) = read(WHILE.replace("EXTRA", extra), loop)
    assert (collective.op, collective.count) == ("pmax", count)
    (scope,) = collective.within
    assert (scope.kind, scope.length) == ("while" if count is None else "scan", count)


def test_a_branch_has_its_number():
    branches = """
%no (a: f32[4,6]) -> f32[4,6] {
  ROOT %a = f32[4,6]{1,0} parameter(0)
}
%yes (b: f32[4,6]) -> f32[4,6] {
  %b = f32[4,6]{1,0} parameter(0)
  ROOT %r = f32[4,6]{1,0} all-reduce(%b), GROUPS, to_apply=%add
}
""".replace("GROUPS", DATA)
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  %k = s32[] constant(1)
  ROOT %c = f32[4,6]{1,0} conditional(%k, %p, %p), branch_computations={%no, %yes}
"""
    (collective,) = read(body, branches)
    assert [(s.kind, s.branch, s.n_branches) for s in collective.within] == [("cond", 1, 2)]


# ------------------------------------------------------------------------------ whose it is

TABLES = """
FileNames
1 "/home/me/train.py"
2 "/site-packages/ours.py"

FunctionNames
1 "loss.<locals>.layer"
2 "call"
3 "Model.__call__"

FileLocations
1 {file_name_id=1 function_name_id=3 line=40 end_line=40 column=8 end_column=8}
2 {file_name_id=2 function_name_id=2 line=143 end_line=143 column=19 end_column=19}
3 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=2}

"""


@pytest.mark.parametrize(
    ("metadata", "source"),
    [
        ('op_name="jit(f)/dot" stack_frame_id=3', SourceLocation("/home/me/train.py", 7, "layer")),
        # Not the user's file: the one that called it.
        ('op_name="x" stack_frame_id=2', SourceLocation("/home/me/train.py", 40, "Model.__call__")),
        (
            'op_name="x" source_file="/home/me/a.py" source_line=9',
            SourceLocation("/home/me/a.py", 9),
        ),
        ('op_name="x"', UNKNOWN_LOCATION),
    ],
)
def test_a_source_line_is_in_the_tables_or_inline(metadata, source):
    body = """
  %p = f32[4,6]{1,0} parameter(0)
  ROOT %r = f32[4,6]{1,0} all-reduce(%p), GROUPS, to_apply=%add, metadata={METADATA}
"""
    body = body.replace("GROUPS", DATA).replace("METADATA", metadata)
    (collective,) = read(
        body, head=HEAD + "\n" + TABLES, is_user_code=lambda s: "/home/me" in s.file
    )
    assert collective.source == source


@pytest.mark.parametrize(
    ("name", "attributes", "is_inserted"),
    [
        # 0.10.2: the compiler names by kind, a program's own has the name of its primitive.
        ("all-reduce.3", 'metadata={op_name="jit(f)/dot_general"}', True),
        ("psum.3", 'metadata={op_name="jit(f)/psum"}', False),
        ("all-reduce.3", 'metadata={op_name="jit(f)/psum_invariant"}', False),
        # From 0.12 on it marks its own.
        ("anything", 'frontend_attributes={is_spmd_generated="true"}', True),
    ],
)
def test_inserted_collectives_differ_from_the_programs_own(name, attributes, is_inserted):
    body = f"""
  %p = f32[4,6]{{1,0}} parameter(0)
  ROOT %{name} = f32[4,6]{{1,0}} all-reduce(%p), {DATA}, to_apply=%add, {attributes}
"""
    (collective,) = read(body)
    assert collective.is_inserted is is_inserted


def test_a_gather_has_the_line_of_the_operation_that_uses_it():
    body = f"""
  %p = f32[4,6]{{1,0}} parameter(0)
  %g = f32[8,6]{{1,0}} all-gather(%p), {DATA}, dimensions={{0}}, metadata={{op_name="params"}}
  ROOT %d = f32[8,6]{{1,0}} sine(%g), metadata={{op_name="jit(f)/sin" stack_frame_id=3}}
"""
    (collective,) = read(body, head=HEAD + "\n" + TABLES)
    assert (collective.source.line, collective.op_name) == (7, "jit(f)/sin")


# -------------------------------------------------------------------------------- small print


def test_dtypes_are_those_of_the_text_and_async_collectives_count_once():
    body = f"""
  %p = bf16[4,6]{{1,0}} parameter(0)
  %s = (bf16[4,6]{{1,0}}, bf16[8,6]{{1,0}}) all-gather-start(%p), {DATA}, dimensions={{0}}
  ROOT %d = bf16[8,6]{{1,0}} all-gather-done(%s)
"""
    (collective,) = read(body)
    assert (collective.operand.dtype, collective.operand.shape, collective.result.shape) == (
        "bf16",
        (4, 6),
        (8, 6),
    )


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={}", 8),  # no channel: among replicas, of which there is one
        ("channel_id=1, replica_groups={{0}}", 1),  # of replicas, across all partitions
        ("channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true", 2),
    ],
)
def test_group_numbers_are_replicas_or_partitions(attributes, groups):
    body = f"""
  %p = f32[4,6]{{1,0}} parameter(0)
  ROOT %r = f32[4,6]{{1,0}} all-reduce(%p), {attributes}, to_apply=%add
"""
    (collective,) = read(body)
    assert len(collective.groups) == groups


def test_a_long_tuple_with_comments_is_parsed():
    body = f"""
  %p = (s32[], f32[4,6]{{1,0}}, /*index=2*/bf16[2]{{0:T(256)(128)(2,1)}}) parameter(0)
  ROOT %r = f32[4,6]{{1,0}} all-reduce(%p#1), {DATA}, to_apply=%add
"""
    (collective,) = read(body)
    assert collective.operand.shape == (4, 6)


def test_an_all_to_all_with_one_operand_per_device_is_one_collective():
    collectives = read(
        """
  %p = f32[4,6]{1,0} parameter(0)
  %left = f32[4,3]{1,0} slice(%p), slice={[0:4], [0:3]}
  %right = f32[4,3]{1,0} slice(%p), slice={[0:4], [3:6]}
  %all-to-all = (f32[4,3]{1,0}, f32[4,3]{1,0}) all-to-all(%left, %right), channel_id=1, """
        """replica_groups={{0,1},{2,3},{4,5},{6,7}}
  %a = f32[4,3]{1,0} get-tuple-element(%all-to-all), index=0
"""
    )
    assert ops(collectives) == [("all_to_all", (2, 4, 3), (2, 4, 3), 1)]
