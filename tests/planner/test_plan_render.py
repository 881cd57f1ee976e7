"""Plans as text: the same facts at every width, arrays as JAX prints them, nothing unescaped."""

from __future__ import annotations

import io
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from rich.console import Console

from shardlab.errors import UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.plan_text import plan_html, plan_markdown, plan_text
from shardlab.planner.snapshots.plan_comparison_text import comparison_markdown
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.planner.tensor_table import count_numbers, group_rows, name_in_group
from shardlab.sharding.dtype import parse_dtype

BF16 = parse_dtype("bf16")
SIZES = {"a": 2, "b": 4, "c": 8}
LLAMA = plan("llama3-8b", "fsdp=4,tensor=16", strategy="fsdp+tensor", optimizer="adamw")


def model(shapes, name="m", axes=None):
    groups = (parse_tensor_group(p, s, BF16, (axes or {}).get(p)) for p, s in shapes.items())
    return Model(name=name, groups=tuple(groups))


@pytest.mark.parametrize(
    "spec",
    [
        (),
        ("a",),
        (None, "b"),
        (("a", "b"), "c"),
        (None, ("c", "a")),
        ("b", None),
    ],
)
def test_an_array_is_written_as_jax_prints_its_type(spec):
    printed = plan(model({"w": (16, 32)}), "a=2,b=4,c=8", rules={"rules": [("w", spec)]})
    mesh = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Explicit,) * 3)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    with jax.sharding.use_abstract_mesh(mesh):
        array = jax.ShapeDtypeStruct((16, 32), jnp.bfloat16, sharding=sharding)
        typed = jax.make_jaxpr(lambda x: x)(array).in_avals[0].str_short(short_dtypes=True)
    assert printed.array_text(printed.rows[0].parameter) == typed


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_no_line_is_wider_than_the_terminal(width):
    printed = plan(
        "deepseek-v3",
        "fsdp=64,tensor=8",
        strategy="fsdp+tensor",
        hardware="tpu-v5p",
        optimizer="adamw",
        workload=Workload(batch=512, sequence=4096),
    )
    lines = plan_text(printed, width, show_rules=True).splitlines()
    # four columns are the minimum: on narrower terminals the table of tensors is wider
    assert max(map(len, lines)) <= max(width, 60)


def test_the_most_important_columns_are_dropped_last():
    heads = {
        w: next(line for line in plan_text(LLAMA, w).splitlines() if "array" in line).split()
        for w in (80, 100, 140)
    }
    assert heads[80] == ["tensor", "array", "total", "replicas", "wasted"]
    assert heads[100] == ["tensor", "array", "shard", "total", "replicas", "wasted"]
    assert set(heads[140]) >= {"spec", "parameter"}


def test_tensors_of_a_layer_are_distinguishable_on_a_narrow_terminal():
    printed = plan("deepseek-v3", "fsdp=64,expert=8", strategy="fsdp+expert", optimizer="adamw")
    lines = plan_text(printed, 80).splitlines()
    start = next(number for number, line in enumerate(lines) if "model.layers.*" in line)
    names = [line.split()[0] for line in lines[start + 1 : start + 7]]
    assert names == ["down_proj", "gate_proj", "up_proj", "o_proj", "q_b_proj", "kv_b_proj"]


def test_color_adds_no_text():
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=False).print(LLAMA)
    assert out.getvalue().rstrip() == plan_text(LLAMA, 100).rstrip()


@pytest.mark.parametrize("axis", ["layers", "stage", "moe_layers"])
def test_all_tensors_stacked_under_one_name_are_one_group(axis):
    """Whatever the dimension is called, and even if only some tensors name it."""
    rows = [
        ("net/moe_layers/up/kernel", (8, 6, 4), (axis, "x", None)),
        ("net/moe_layers/wi_0", (8, 4, 6), None),
        ("net/moe_layers/block/scale", (8, 6), None),
        ("head/kernel", (6, 4), None),
    ]
    parts = [parse_tensor_group(path, shape, BF16, axes=axes) for path, shape, axes in rows]
    printed = plan(Model(name="m", groups=tuple(parts)), "x=2")
    titles = {group.title: len(group.rows) for group in group_rows(printed, show_all=True)}
    assert titles == {"net/moe_layers/* ×8, stacked": 3, "outside the layers": 1}


def test_one_block_that_is_not_stacked_is_not_a_group_of_layers():
    parts = [parse_tensor_group(f"block/{name}/kernel", (8, 6), BF16) for name in ("a", "b")]
    (group,) = group_rows(plan(Model(name="m", groups=tuple(parts)), "x=2"))
    assert group.title == "all tensors"


def test_named_and_stacked_layers_are_grouped_alike():
    named = plan(model({"net.layers.{0..7}.up": (64, 16), "head": (16, 96)}), "x=2")
    stacked = plan(
        model(
            {"net.layers.up": (8, 64, 16), "net.layers.down": (8, 16, 64), "head": (16, 96)},
            axes={
                "net.layers.up": ("layers", "mlp", "embed"),
                "net.layers.down": ("layers", "embed", "mlp"),
            },
        ),
        "x=2",
    )
    assert [group.title for group in group_rows(named)] == [
        "net.layers.* ×8",
        "outside the layers",
    ]
    first = group_rows(stacked)[0]
    assert first.title == "net.layers.* ×8, stacked"
    assert [name_in_group(row, first) for row in first.rows] == ["down", "up"]


def test_a_tensor_that_is_not_once_in_each_layer_has_its_count():
    printed = plan(
        model({"layers.{0..7}.norm": (16,), "layers.{0..7}.experts.{0..31}.up": (64, 16)}), "x=2"
    )
    (group,) = group_rows(printed, show_all=True)
    assert [name_in_group(row, group) for row in group.rows] == ["experts.*.up ×256", "norm"]


def test_a_tensor_of_a_single_layer_is_grouped_with_the_layers():
    shapes = {
        "net.layers.{0..7}.up": (64, 16),
        "net.layers.8.head": (64, 16),
        "net.layers.8.experts.{0..3}.up": (64, 16),
        "net.layers.8x.up": (64, 16),
    }
    first, outside = group_rows(plan(model(shapes), "x=2"), show_all=True)
    assert first.title == "net.layers.* ×9"
    names = ["8.experts.*.up ×4", "8.head", "up ×8"]
    assert sorted(name_in_group(row, first) for row in first.rows) == names
    assert [row.path for row in outside.rows] == ["net.layers.8x.up"]


def test_a_layer_that_a_rule_shards_differently_is_grouped_with_the_others():
    rules = {"rules": [(r"layers\.0\.", "x"), (".*", "")]}
    printed = plan(model({"layers.{0..3}.up": (64, 16)}), "x=2", rules=rules)
    (group,) = group_rows(printed)
    assert group.title == "layers.* ×4"
    assert [name_in_group(row, group) for row in group.rows] == ["up ×3", "0.up"]


def test_parts_of_a_group_are_distinguished_by_their_numbers():
    rules = {"rules": [(r"layers\.[0-3]\.up", "x"), (".*", "")]}
    text = str(plan(model({"layers.{0..7}.up": (64, 16)}), "x=2", rules=rules))
    assert "up (0..3)" in text
    assert "up (4..7)" in text


def test_numbers_are_counted_once():
    assert count_numbers(["0..3", "2..5", "9"]) == 7


def test_small_tensors_are_folded_but_never_a_single_one():
    shapes = {"big": (1024, 1024), "small": (4,)}
    assert " more" not in str(plan(model(shapes), "x=2"))
    text = str(plan(model(shapes | {"smaller": (2,)}), "x=2"))
    assert "2 more" in text
    assert "12 bytes" in text


def test_the_states_of_zero_1_are_shown_below_the_replicated_parameter():
    printed = plan("llama3-8b", "data=8", strategy="zero1", optimizer="adamw")
    assert "    master, mu, nu: f32[14336@data,4096]" in str(printed)


def test_the_arrays_of_the_optimizer_are_listed_with_dtype_and_bytes():
    printed = plan(model({"w": (64, 32)}), "x=2", optimizer="adamw", policy="grad=f32")
    lines = [line.split() for line in plan_text(printed).splitlines()]
    assert ["parameters", "bf16", "4.1", "kB"] in [line[:4] for line in lines]
    assert ["gradients", "f32", "8.2", "kB"] in [line[:4] for line in lines]
    parts = [line[1:5] for line in lines if line[:1] == ["·"]]
    assert parts == [[name, "f32", "8.2", "kB"] for name in ("master", "mu", "nu")]


def test_the_cache_is_shown_with_its_dtype():
    work = Workload(batch=8, sequence=128, cache_dtype="int8")
    text = str(plan("llama3-8b", "tensor=4", strategy="tensor", workload=work))
    assert re.search(r"KV cache +s8 +16\.8 MB", text)


def test_many_dtypes_are_ordered_by_their_bytes():
    groups = [
        parse_tensor_group(f"w{n}", (2**n, 8), parse_dtype(name))
        for n, name in enumerate(("f32", "bf16", "f16", "f8e4m3fn"))
    ]
    assert "f16, f8e4m3fn, f32, 1 more" in str(plan(Model(name="m", groups=tuple(groups)), "x=2"))


def test_the_headline_counts_the_findings_below():
    rules = {"rules": [("none", ""), ("nor_this", ""), ("w", "nope"), (".*", "")]}
    printed = plan(model({"w": (64, 32)}), "x=2", rules=rules)
    counts = Counter(finding.severity for finding in printed.findings)
    assert counts["error"] == 1
    assert counts["warning"] > 1
    first = str(printed).splitlines()[0]
    warnings = f"{counts['warning']} warnings"
    assert first == f"JAX rejects it; 4.1 kB on each of 2 devices; 1 error and {warnings} below"
    assert first in plan_markdown(printed)
    assert first in plan_html(printed)
    assert "below" not in printed.svg()


def test_the_headline_of_a_plan_that_jax_rejects_says_why():
    rules = {"rules": [("w", "x")]}
    rejected = plan(model({"w": (63, 32)}), "x=2", rules=rules, hardware="tpu-v5p")
    assert rejected.fits
    assert {finding.code for finding in rejected.findings} >= {"plan.indivisible"}
    assert " ".join(str(rejected).split()).startswith(
        "fits in memory, but JAX rejects it: size 63 of 'w' is not divisible by 2; "
        "2.0 kB of 96.0 GB on each of 2 tpu-v5p; "
    )
    assert str(plan(model({"w": (64, 32)}), "x=2", rules=rules, hardware="tpu-v5p")).startswith(
        "fits"
    )


def test_the_spec_is_a_column_if_it_fits_and_explained_otherwise():
    wide, page = plan_text(LLAMA, 160), plan_html(LLAMA)
    for text in (wide, page, plan_markdown(LLAMA)):
        assert "spec" in text
    rows = [line for line in wide.splitlines() if "P('tensor', 'fsdp')  [" in line]
    assert len(rows) == 5
    assert re.search(
        r"@ marks mesh axes: bf16\[.*@fsdp.*\] is sharded as P\(", plan_text(LLAMA, 100)
    )


def test_the_repr_of_a_plan_is_one_line():
    assert repr(LLAMA).startswith("<Plan of llama3-8b on fsdp=4,tensor=16: ")
    assert "\n" not in repr(LLAMA)


@pytest.mark.parametrize("kind", ["optimiser", "", None, ["parameters"]])
def test_an_unknown_kind_is_rejected(kind):
    with pytest.raises(UnknownOption, match="known: parameters, gradients, optimizer, ") as error:
        LLAMA.bytes_of(kind)
    if kind == "optimiser":
        assert error.value.fix == "Did you mean 'optimizer'?"


def test_an_empty_model_and_a_scalar_can_be_printed():
    for shapes in ({}, {"s": ()}, {"none": (0, 4)}):
        printed = plan(model(shapes), "x=2")
        assert str(printed).splitlines()[0].startswith(("0 bytes on each", "2 bytes on each"))
        assert plan_markdown(printed)
        assert plan_html(printed)


def test_control_characters_and_markup_in_names_are_escaped():
    hostile = "a\x1b[31m|`<script>alert(1)</script>\u202e\n# x"
    printed = plan(model({hostile: (512, 512)}, name=hostile), "x=2")
    for text in (
        str(printed),
        repr(printed),
        plan_markdown(printed),
        plan_html(printed),
        printed.svg(),
    ):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script" not in plan_html(printed) + printed.svg() + printed.treemap()
    assert not any(line.startswith("# x") for line in plan_markdown(printed).splitlines())


def test_markdown_escapes_bars_in_patterns_inside_and_outside_of_tables():
    printed = plan(model({"w": (16, 32)}), "x=2", rules={"rules": [("w|v", "x"), (".*", "")]})
    changed = plan(model({"w": (16, 32)}), "x=2", rules={"rules": [("w|v", ""), (".*", "")]})
    assert r"| `w\|v` | `P('x')` | 1 |" in plan_markdown(printed, show_rules=True)
    assert "- `~` `w|v`: P() → P('x')" in comparison_markdown(printed.compare(changed))


def test_markdown_has_the_line_below_a_row_in_a_column():
    printed = plan("llama3-8b", "data=8", strategy="zero1", optimizer="adamw")
    rows = [line for line in plan_markdown(printed).splitlines() if "`mlp.up_proj.weight`" in line]
    assert rows[0].endswith(" | master, mu, nu: `f32[14336@data,4096]` |")


def test_options_and_formulas_are_in_the_assumptions():
    printed = plan(
        "llama3-8b",
        "fsdp=8",
        strategy="fsdp",
        optimizer="adamw",
        hardware="h100",
        workload=Workload(batch=64, sequence=2048),
    )
    text = str(printed)
    assumptions = text[text.index("\nAssumptions\n") :]
    for word in ("optimizer adamw", "batch 64", "remat full", "tokens", "memory of one h100"):
        assert word in assumptions
