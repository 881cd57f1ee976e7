"""Comparing plans: what was planned, what moved, and nothing if nothing did."""

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


def make(rules=((".*", ""),), mesh="x=2,y=4", source=None, **options):
    return plan(source or model(), mesh, rules={"rules": list(rules)}, **options)


def lines(old, new):
    return [
        (change.topic, change.verb, change.name, change.old, change.new)
        for change in _changes(old, new)
    ]


def _changes(old, new):
    return new.compare(old).changes


def test_a_plan_does_not_depend_on_where_its_model_was_read_from():
    moved = Model(name="m", groups=model().groups, source="another place")
    comparison = make().compare(make(source=moved))
    assert comparison.same
    assert str(comparison) == "the same: m on x=2,y=4"
    assert comparison.n_compared == 9


def test_another_mesh_changes_the_replicas():
    changes = lines(make(mesh="x=2,y=4"), make(mesh="x=4,y=4"))
    assert changes[0] == ("question", "changed", "mesh", "x=2,y=4", "x=4,y=4")
    assert (
        "tensor",
        "changed",
        "embed",
        "shard [96,16] on 8 devices, 3,072 bytes",
        "shard [96,16] on 16 devices, 3,072 bytes",
    ) in changes


def test_one_device_is_singular():
    change = next(change for change in _changes(make(mesh="x=1"), make()) if change.name == "embed")
    assert change.old == "shard [96,16] on 1 device, 3,072 bytes"


def test_added_removed_reshaped_and_resharded_tensors_are_distinguished():
    old = make(source=model(gone=(8,)))
    new = make([("up", "y"), (".*", "")], source=model(embed=(128, 16), new=(4,)))
    changes = {
        name: (verb, was, now)
        for topic, verb, name, was, now in lines(old, new)
        if topic == "tensor"
    }
    assert changes == {
        "gone": ("removed", "bf16[8]", ""),
        "new": ("added", "", "bf16[4]"),
        "embed": ("changed", "bf16[96,16]", "bf16[128,16]"),
        "layers.*.up": ("changed", "bf16[64,16] ×4", "bf16[64@y,16] ×4"),
    }


def test_a_split_group_shows_each_part_with_its_numbers():
    new = make([(r"layers\.[01]\.up", "y"), (".*", "")])
    change = next(change for change in _changes(make(), new) if change.name == "layers.*.up")
    assert change.new == "0..1: bf16[64@y,16]; 2..3: bf16[64,16]"
    assert (change.old_bytes, change.new_bytes) == (4 * 64 * 16 * 2, 2 * (512 + 2048))


def test_another_optimizer_shows_in_its_states():
    old, new = make(optimizer="adam"), make(optimizer="lion")
    changes = {(change.topic, change.name): change for change in _changes(old, new)}
    optimizer, embed = changes["question", "optimizer"], changes["tensor", "embed"]
    assert (optimizer.old, optimizer.new) == ("adam", "lion")
    assert (embed.old, embed.new) == ("nu f32[96,16]", "nothing")
    assert embed.old_bytes - embed.new_bytes == 4 * 96 * 16


def test_new_and_removed_findings_are_reported():
    old = make([("up", "x"), (".*", "")])
    new = make([("up", "x"), ("nothing_has_this", "y"), (".*", "")])
    (change,) = (change for change in _changes(old, new) if change.topic == "finding")
    assert (change.verb, change.name) == ("added", "rule.unused")
    (reverse,) = (change for change in _changes(new, old) if change.topic == "finding")
    assert reverse.verb == "removed"


def test_changed_added_and_moved_rules_are_reported():
    old = make([("up", "x"), ("norm", ""), (".*", "")])
    new = make([("norm", ""), ("up", "y"), (".*", ""), (".*", "x")])
    changes = [
        (change.verb, change.name, change.old, change.new) for change in _of("rule", old, new)
    ]
    assert changes == [
        ("changed", "up", "P('x')", "P('y')"),
        ("added", ".* (2)", "", "P('x')"),
        ("changed", "order", "as before", "the same rules in another order"),
    ]
    named = plan(model(), "x=2,y=4", rules={"specs": {"embed": "x"}, "logical": [("mlp", "y")]})
    assert [change.name for change in _of("rule", old, named) if change.verb == "added"] == [
        "path embed",
        "logical mlp",
    ]


def _of(topic, old, new):
    return [change for change in _changes(old, new) if change.topic == topic]


def test_a_smaller_chip_changes_the_verdict():
    llama = {"strategy": "fsdp", "optimizer": "adamw"}
    old = plan("llama3-8b", "fsdp=16", hardware="tpu-v5p", **llama)
    new = plan("llama3-8b", "fsdp=4", hardware="tpu-v5e", **llama)
    verdict = next(change for change in _changes(old, new) if change.name == "verdict")
    assert (verdict.old, verdict.new) == ("fits", "does not fit")


def test_memory_by_formula_is_compared_with_its_bytes():
    ways = {"strategy": "fsdp", "optimizer": "adamw"}
    old = plan("llama3-8b", "fsdp=8", workload=Workload(batch=8, sequence=4096), **ways)
    new = plan("llama3-8b", "fsdp=8", workload=Workload(batch=16, sequence=4096), **ways)
    items = [change for change in _changes(old, new) if change.topic == "item"]
    assert items[0].new_bytes == 2 * items[0].old_bytes  # saved activations
    assert all(change.new_bytes > change.old_bytes for change in items)
    text = str(new.compare(old))
    assert "~ batch: 8 → 16" in text
    assert "+100.0 %" in text


def test_json_and_every_renderer_have_the_same_changes():
    comparison = make([("up", "y"), (".*", "")]).compare(make())
    data = comparison.to_json()
    assert not data["same"]
    assert len(data["changes"]) == len(comparison.changes)
    assert repr(comparison) == f"<Comparison of m on x=2,y=4: {len(comparison.changes)} changes>"
    assert "layers.*.up" in comparison._repr_html_()


def test_a_rule_inserted_before_an_unused_rule_is_not_a_new_finding():
    old = make([("up", "x"), ("no_such_tensor", "y"), (".*", "")])
    new = make([("norm", ""), ("up", "x"), ("no_such_tensor", "y"), (".*", "")])
    assert not _of("finding", old, new)
    also_unused = make([("up", "x"), ("no_such_tensor", "y"), ("nor_this", "y"), (".*", "")])
    assert [change.name for change in _of("finding", old, also_unused)] == ["rule.unused"]
