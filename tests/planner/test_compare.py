"""Comparing plans: what was asked, what moved, and nothing where nothing did."""

from __future__ import annotations

from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype

BF16 = parse_dtype("bf16")


def model(**changes):
    shapes = {"embed": (96, 16), "layers.{0..3}.up": (64, 16), "layers.{0..3}.norm": (16,)}
    return Model(
        name="m",
        groups=tuple(parse_tensor_group(p, s, BF16) for p, s in (shapes | changes).items() if s),
    )


def planned(rules=((".*", ""),), mesh="x=2,y=4", of=None, **options):
    return plan(of or model(), mesh, rules={"rules": list(rules)}, **options)


def lines(old, new):
    return [(each.topic, each.verb, each.name, each.old, each.new) for each in _changes(old, new)]


def _changes(old, new):
    return new.compare(old).changes


def test_the_same_plan_is_the_same_wherever_its_model_was_read_from():
    moved = Model(name="m", groups=model().groups, source="another place")
    comparison = planned().compare(planned(of=moved))
    assert comparison.same
    assert str(comparison) == "the same: m on x=2,y=4"
    assert comparison.n_compared == 9


def test_another_mesh_moves_the_copies():
    found = lines(planned(mesh="x=2,y=4"), planned(mesh="x=4,y=4"))
    assert found[0] == ("question", "changed", "mesh", "x=2,y=4", "x=4,y=4")
    assert (
        "tensor",
        "changed",
        "embed",
        "shard [96,16] on 8 devices, 3,072 bytes",
        "shard [96,16] on 16 devices, 3,072 bytes",
    ) in found


def test_one_device_is_not_called_devices():
    change = next(each for each in _changes(planned(mesh="x=1"), planned()) if each.name == "embed")
    assert change.old == "shard [96,16] on 1 device, 3,072 bytes"


def test_tensors_that_are_added_removed_reshaped_and_cut_anew_are_told_apart():
    old = planned(of=model(gone=(8,)))
    new = planned([("up", "y"), (".*", "")], of=model(embed=(128, 16), new=(4,)))
    found = {
        name: (verb, was, now)
        for topic, verb, name, was, now in lines(old, new)
        if topic == "tensor"
    }
    assert found == {
        "gone": ("removed", "bf16[8]", ""),
        "new": ("added", "", "bf16[4]"),
        "embed": ("changed", "bf16[96,16]", "bf16[128,16]"),
        "layers.*.up": ("changed", "bf16[64,16] ×4", "bf16[64@y,16] ×4"),
    }


def test_a_family_that_is_split_shows_each_part_with_its_numbers():
    new = planned([(r"layers\.[01]\.up", "y"), (".*", "")])
    change = next(each for each in _changes(planned(), new) if each.name == "layers.*.up")
    assert change.new == "0..1: bf16[64@y,16]; 2..3: bf16[64,16]"
    assert (change.old_bytes, change.new_bytes) == (4 * 64 * 16 * 2, 2 * (512 + 2048))


def test_an_optimizer_is_told_by_what_it_keeps():
    old, new = planned(optimizer="adam"), planned(optimizer="lion")
    found = {(each.topic, each.name): each for each in _changes(old, new)}
    asked, embed = found["question", "optimizer"], found["tensor", "embed"]
    assert (asked.old, asked.new) == ("adam", "lion")
    assert (embed.old, embed.new) == ("nu f32[96,16]", "nothing")
    assert embed.old_bytes - embed.new_bytes == 4 * 96 * 16


def test_findings_that_are_new_and_gone_are_told():
    old = planned([("up", "x"), (".*", "")])
    new = planned([("up", "x"), ("nothing_has_this", "y"), (".*", "")])
    (change,) = (each for each in _changes(old, new) if each.topic == "finding")
    assert (change.verb, change.name) == ("added", "rule.unused")
    (back,) = (each for each in _changes(new, old) if each.topic == "finding")
    assert back.verb == "removed"


def test_a_rule_that_was_changed_added_or_moved_is_told():
    old = planned([("up", "x"), ("norm", ""), (".*", "")])
    new = planned([("norm", ""), ("up", "y"), (".*", ""), (".*", "x")])
    found = [(each.verb, each.name, each.old, each.new) for each in _of("rule", old, new)]
    assert found == [
        ("changed", "up", "P('x')", "P('y')"),
        ("added", ".* (2)", "", "P('x')"),
        ("changed", "order", "as it was", "the same rules in another order"),
    ]
    named = plan(model(), "x=2,y=4", rules={"specs": {"embed": "x"}, "logical": [("mlp", "y")]})
    assert [each.name for each in _of("rule", old, named) if each.verb == "added"] == [
        "path embed",
        "logical mlp",
    ]


def _of(topic, old, new):
    return [each for each in _changes(old, new) if each.topic == topic]


def test_a_chip_too_small_changes_the_verdict():
    llama = {"strategy": "fsdp", "optimizer": "adamw"}
    old = plan("llama3-8b", "fsdp=16", hardware="tpu-v5p", **llama)
    new = plan("llama3-8b", "fsdp=4", hardware="tpu-v5e", **llama)
    verdict = next(each for each in _changes(old, new) if each.name == "verdict")
    assert (verdict.old, verdict.new) == ("fits", "does not fit")


def test_what_is_counted_by_formula_is_told_with_its_bytes():
    ways = {"strategy": "fsdp", "optimizer": "adamw"}
    old = plan("llama3-8b", "fsdp=8", workload=Workload(batch=8, sequence=4096), **ways)
    new = plan("llama3-8b", "fsdp=8", workload=Workload(batch=16, sequence=4096), **ways)
    items = [each for each in _changes(old, new) if each.topic == "item"]
    assert items
    assert all(each.new_bytes == 2 * each.old_bytes for each in items)
    text = str(new.compare(old))
    assert "~ batch: 8 → 16" in text
    assert "+100.0 %" in text


def test_plain_data_and_every_look_hold_the_same_changes():
    comparison = planned([("up", "y"), (".*", "")]).compare(planned())
    data = comparison.to_json()
    assert not data["same"]
    assert len(data["changes"]) == len(comparison.changes)
    assert repr(comparison) == f"<Comparison of m on x=2,y=4: {len(comparison.changes)} changes>"
    assert "layers.*.up" in comparison._repr_html_()
