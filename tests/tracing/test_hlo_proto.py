"""A module's protocol buffer says the same as its text, and is read strictly."""

from __future__ import annotations

import pytest
from jaxlib import _hlo

from shardlab.tracing.hlo.hlo_collectives import hlo_collectives
from shardlab.tracing.hlo.hlo_module import parse_module
from shardlab.tracing.hlo.hlo_proto import InvalidModule, read_module_proto

MODULE = """HloModule jit_f, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%max (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %larger = f32[] maximum(%x.1, %y.1)
}

%body (state: (s32[], f32[4,6])) -> (s32[], f32[4,6]) {
  %state = (s32[], f32[4,6]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %a = f32[4,6]{1,0} get-tuple-element(%state), index=1
  %sent = f32[4,6]{1,0} collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,0}}
  ROOT %t = (s32[], f32[4,6]{1,0}) tuple(%next, %sent)
}

%condition (state.1: (s32[], f32[4,6])) -> pred[] {
  %state.1 = (s32[], f32[4,6]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %five), direction=LT
}

%left (a.1: f32[4,6]) -> f32[4,6] {
  %a.1 = f32[4,6]{1,0} parameter(0)
  ROOT %m = f32[4,6]{1,0} all-reduce(%a.1), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), \
use_global_device_ids=true, to_apply=%max
}

%right (a.2: f32[4,6]) -> f32[4,6] {
  %a.2 = f32[4,6]{1,0} parameter(0)
  %gathered = f32[16,6]{1,0} all-gather(%a.2), channel_id=4, dimensions={0}, \
replica_groups=[2,4]<=[8], use_global_device_ids=true, metadata={op_name="jit(f)/all_gather"}
  ROOT %g = f32[4,6]{1,0} reduce-scatter(%gathered), channel_id=3, dimensions={0}, \
replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%add
}

%callee (a.3: bf16[8]) -> bf16[8] {
  %a.3 = bf16[8]{0} parameter(0)
  ROOT %swapped = bf16[8]{0} all-to-all(%a.3), channel_id=5, dimensions={0}, \
replica_groups={{0,1},{2,3},{4,5},{6,7}}
}

ENTRY %main (p: f32[4,6], q: pred[], r: bf16[8]) -> (f32[4,6], bf16[8]) {
  %p = f32[4,6]{1,0} parameter(0)
  %q = pred[] parameter(1)
  %r = bf16[8]{0} parameter(2)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,6]{1,0}) tuple(%zero, %p)
  %loop = (s32[], f32[4,6]{1,0}) while(%start), condition=%condition, body=%body
  %last = f32[4,6]{1,0} get-tuple-element(%loop), index=1
  %branch = f32[4,6]{1,0} conditional(%q, %last, %last), true_computation=%left, \
false_computation=%right
  %called = bf16[8]{0} call(%r), to_apply=%callee, \
frontend_attributes={composite.name="my.swap"}
  ROOT %result = (f32[4,6]{1,0}, bf16[8]{0}) tuple(%branch, %called)
}
"""


def serialized(text):
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def facts(module):
    return sorted(
        (item.op, item.operand, item.result, item.groups, item.pairs, item.count, item.reduction)
        for item in hlo_collectives(module)
    )


def test_the_proto_has_the_collectives_of_the_text():
    from_proto = facts(read_module_proto(serialized(MODULE), 8))
    # XLA's text with every operand before its user, as the proto has it.
    text = _hlo.hlo_module_from_text(MODULE).to_string()
    assert from_proto == facts(parse_module(text.splitlines()))
    assert [(op, count) for op, *_, count, _ in from_proto] == [
        ("all_gather", 1),
        ("all_to_all", 1),
        ("pmax", 1),
        ("ppermute", 5),
        ("psum_scatter", 1),
    ]


def test_names_and_attributes_of_a_program_are_no_structure():
    hostile = r"{}} }\n\nENTRY %main2 (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n"
    text = MODULE.replace('op_name="jit(f)/all_gather"', f'op_name="{hostile}"')
    text = text.replace('composite.name="my.swap"', f'composite.name="{hostile}"')
    assert facts(read_module_proto(serialized(text), 8)) == facts(
        read_module_proto(serialized(MODULE), 8)
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "entry"),
        (b"\x1a\x7f", "ends after"),
        (b"\x0b", "wire type"),
        (b"\xff" * 12, "no end"),
        (b"\x18\x01", "no message"),
    ],
)
def test_what_is_no_module_is_rejected(data, reason):
    with pytest.raises(InvalidModule, match=reason):
        read_module_proto(data, 8)


def test_every_truncated_module_is_rejected():
    data = serialized(MODULE)
    for size in range(0, len(data) - 1, 97):
        with pytest.raises(InvalidModule):
            read_module_proto(data[:size], 8)
