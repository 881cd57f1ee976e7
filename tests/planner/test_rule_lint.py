"""Rule lint: each kind of finding with its path and bytes, and none for sensible rules."""

from __future__ import annotations

import pytest

from shardlab.planner.make_plan import plan
from shardlab.planner.model import Model
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import preset_names
from shardlab.planner.rules.lint import is_catch_all, lint_rules
from shardlab.planner.rules.path_search import match_paths
from shardlab.planner.rules.rules import parse_rules
from shardlab.planner.tensor_group import Tensor, group_tensors, parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.spec import Spec

BF16 = parse_dtype("bf16")
MESH = Mesh(fsdp=2, tensor=3)


def build_model(*rows):
    return Model(
        name="m",
        groups=tuple(
            parse_tensor_group(path, shape, BF16, **options) for path, shape, options in rows
        ),
    )


# 48 MiB and 96 MiB of kernels, 1.5 MiB of biases, 128 MiB of embedding
MODEL = build_model(
    ("embed.table", (32768, 2048), {}),
    ("layers.{0..1}.attn.kernel", (3072, 4096), {}),
    ("layers.{0..1}.mlp.kernel", (6144, 4096), {}),
    ("layers.{0..1}.mlp.bias", (6144,), {}),
)
GOOD = [("embed", "tensor,fsdp"), ("kernel", "fsdp,tensor"), (".*", "")]


def lint_findings(rules, model=MODEL, mesh=MESH):
    rules = parse_rules({"rules": rules} if isinstance(rules, list) else rules)
    return lint_rules(match_paths(model, rules), rules, mesh)


def single_finding(rules, code, **options):
    """The one finding there is, of that code."""
    (finding,) = lint_findings(rules, **options)
    assert finding.code == code
    return finding


def test_good_rules_give_nothing():
    assert lint_findings(GOOD) == ()


def test_a_rule_that_matches_nothing_suggests_a_similar_word():
    finding = single_finding([("atn/kernel", "fsdp"), *GOOD], "rule.unused")
    assert str(finding).splitlines() == [
        "warning [rule.unused] Rule 1 (atn/kernel) matches no tensor.",
        "  try:   Did you mean 'attn' instead of 'atn'?",
    ]


def test_words_that_all_exist_but_not_together_are_reported():
    finding = single_finding([("attn/bias", "fsdp"), *GOOD], "rule.unused")
    assert (
        finding.fix == "compare the pattern with a path, such as embed.table; or remove the rule."
    )


def test_beyond_twenty_findings_of_a_kind_the_others_are_counted():
    late = [(f"k{{1,{n}}}ernel", "fsdp,tensor") for n in range(1, 51)]
    findings = lint_findings([*GOOD[:2], *late, GOOD[2]])
    assert [finding.code for finding in findings] == ["rule.shadowed"] * 21
    assert findings[-1].what == "There are 30 more findings of this kind."


def test_many_rules_that_match_nothing_are_one_finding():
    """As where the rules are for another model."""
    rules = [(f"nothing{n}", "fsdp") for n in range(12)]
    finding = single_finding([*rules, *GOOD], "rule.unused")
    assert finding.what == "12 of 15 rules match no tensor."
    assert finding.shows == (*(f"{n + 1}: nothing{n}" for n in range(8)), "and 4 more")
    assert finding.fix == (
        "write rules for this model. No path contains 'nothing0'. "
        "An example of its paths: embed.table."
    )
    assert finding.details["rules"] == [*range(1, 13)]
    finding = single_finding({"rules": GOOD, "specs": dict(rules)}, "rule.unused")
    assert finding.what == "12 of 12 specs are for paths that no tensor has."


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("wq|wk", "No path contains 'wq' or 'wk'."),  # not 'q' in place of 'wq'
        ("[a-z_]+/weights", "No path contains 'weights'."),
        (r"[]a-z_\]]+/kernels", "Did you mean 'kernel' instead of 'kernels'?"),
        ("embedding/table", "No path contains 'embedding'."),
    ],
)
def test_a_suggestion_is_really_near_and_no_class_of_letters_is_a_word(pattern, fix):
    assert single_finding([(pattern, "fsdp"), *GOOD], "rule.unused").fix == fix


def test_a_spec_for_a_missing_path_suggests_the_nearest():
    rules = {"rules": GOOD, "specs": {"layers/2/attn/kernel": "fsdp"}}
    finding = single_finding(rules, "rule.unused")
    assert finding.what == (
        "There is a spec for the path 'layers/2/attn/kernel', which no tensor has."
    )
    assert finding.fix == "Did you mean 'layers.*.attn.kernel'? It exists for 0..1."


def test_a_shadowed_rule_names_those_that_take_its_tensors():
    finding = single_finding([*GOOD[:2], ("mlp/kernel", "tensor"), GOOD[2]], "rule.shadowed")
    assert finding.what == (
        "Rule 3 (mlp/kernel) matches 2 tensors (100.7 MB) but never applies: "
        "rule 2 (kernel) applies first."
    )
    assert finding.shows == ("layers.*.mlp.kernel ×2  100.7 MB",)
    assert finding.details == {
        "paths": ["layers.*.mlp.kernel"],
        "bytes": 2 * 2 * 6144 * 4096,
        "rule": 3,
    }


def test_a_spec_for_a_path_shadows_too():
    rules = {"rules": [("embed", "fsdp"), *GOOD[1:]], "specs": {"embed.table": "tensor"}}
    assert "the spec for embed.table applies first" in single_finding(rules, "rule.shadowed").what


def test_rules_that_overlap_and_neither_is_narrower_conflict():
    rules = [("mlp", "..., tensor"), ("kernel", "fsdp"), (".*", "fsdp")]
    finding = single_finding(rules, "rule.conflict")
    assert finding.severity == "warning"
    assert finding.what == (
        "Rules 1 (mlp) and 2 (kernel) both match 2 tensors (100.7 MB), "
        "with P(..., 'tensor') and P('fsdp'); the first one applies."
    )


def test_a_conflict_about_little_is_only_mentioned():
    rules = [("layers.0", "fsdp"), ("bias", "tensor"), (".*", "fsdp")]
    assert single_finding(rules, "rule.conflict").severity == "info"


@pytest.mark.parametrize(
    "rules",
    [
        [("mlp/kernel", "tensor"), ("kernel", "fsdp"), (".*", "fsdp")],  # an exception first
        [("mlp", "fsdp"), ("kernel", "fsdp,None"), (".*", "fsdp")],  # the same spec
        [("bias", ""), ("mlp", "fsdp,tensor"), (".*", "fsdp")],  # the second would not fit
        [("mlp", "tensor"), (".*", "fsdp")],
    ],
)
def test_intended_overlaps_are_no_conflict(rules):
    assert lint_findings(rules) == ()


@pytest.mark.parametrize(
    ("spec", "severity", "message"),
    [
        ("tensor", "warning", "with P('fsdp', 'tensor') and P('tensor')."),
        ("fsdp,tensor", "info", "and the same spec."),
    ],
)
def test_the_same_pattern_twice_is_a_conflict(spec, severity, message):
    finding = single_finding([*GOOD[:2], ("kernel", spec), GOOD[2]], "rule.conflict")
    assert finding.severity == severity
    assert finding.what == f"Rules 2 and 3 have the same pattern 'kernel', {message}"


def test_a_catch_all_that_replicates_large_tensors_reports_their_bytes():
    finding = single_finding(
        [GOOD[0], ("attn", "fsdp,tensor"), (".*", "")], "rule.catch_all_replicates"
    )
    assert str(finding).splitlines() == [
        "warning [rule.catch_all_replicates] Rule 3 (.*) replicates 2 tensors (100.7 MB) on "
        "every device.",
        "    layers.*.mlp.kernel ×2  100.7 MB",
        "  try:   add rules for these tensors before it; or give the rule a reason if this is "
        "intended.",
    ]


def test_a_catch_all_that_shards_is_not_reported():
    assert lint_findings([(".*", "fsdp")]) == ()


def test_tensors_that_no_rule_matches_are_reported_largest_first():
    finding = single_finding([("attn", "fsdp")], "rule.unmatched")
    assert finding.severity == "warning"
    assert finding.what.startswith("No rule matches 5 tensors (234.9 MB)")
    assert finding.shows == (
        "embed.table  134.2 MB",
        "layers.*.mlp.kernel ×2  100.7 MB",
        "layers.*.mlp.bias ×2  24.6 kB",
    )
    assert single_finding([("kernel|table", "fsdp")], "rule.unmatched").severity == "info"


def test_axis_names_that_mean_nothing_are_reported_even_without_rules():
    model = build_model(("w", (8192, 8192), {"axes": ("embed", "mlp")}))
    finding = single_finding([], "rule.unmatched", model=model)
    assert finding.what.startswith("No rules shard the named dimensions of 1 tensor (")
    assert finding.fix == "use a strategy; or add logical rules for 'embed' and 'mlp'."
    assert lint_findings([], model=model, mesh=Mesh(embed=2, mlp=2)) == ()


def test_a_name_of_the_models_that_is_no_mesh_axis_beside_one_that_is_one_is_reported():
    model = build_model(("w", (8192, 8192), {"axes": ("fsdp", "tensr")}))
    finding = single_finding([], "rule.invalid_spec", model=model)
    assert finding.severity == "warning"
    assert finding.what.startswith("The model names a dimension of w 'tensr'")
    assert finding.fix.endswith("Did you mean 'tensor'? The mesh is fsdp=2,tensor=3.")


def test_nothing_is_reported_about_tensors_without_rules_where_there_are_no_rules():
    assert lint_findings([]) == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fsdp,tensor,None", "The spec has 3 entries and the array has 2 dimensions."),
        ("fdsp", "Unknown mesh axis 'fdsp'. Did you mean 'fsdp'? Known: fsdp, tensor."),
        ("fsdp,fsdp", "Mesh axis 'fsdp' is used for dimensions 0 and 1"),
    ],
)
def test_a_spec_that_does_not_fit_is_an_error_with_line_and_path(spec, message, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        f"[[rules]]\npath = 'bias'\nspec = ''\n\n[[rules]]\npath = '.*'\nspec = '{spec}'\n"
    )
    (finding,) = lint_findings(path)
    assert (finding.code, finding.severity) == ("rule.invalid_spec", "error")
    assert finding.what.startswith("Rule 2 (.*) gives embed.table the spec P(")
    assert f", which is invalid: {message}" in finding.what
    assert finding.fix.endswith("Until then the plan replicates 5 tensors (285.2 MB).")
    assert str(finding.where) == f"{path}:5"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        (
            "mp",
            "Did you mean 'tensor'? It has the same role as 'mp'.",
        ),  # and not dp, which is spelt alike
        ("zero", "Did you mean 'fsdp'? It has the same role as 'zero'."),
        ("tensr", "Did you mean 'tensor'?"),
    ],
)
def test_a_missing_mesh_axis_is_suggested_by_role_before_spelling(name, suggestion):
    finding = lint_findings([(".*", name)], mesh=Mesh(dp=2, fsdp=2, tensor=3))[0]
    assert suggestion in str(finding)
    assert str(finding).count("Did you mean") == 1


def test_the_models_own_spec_can_be_invalid():
    model = build_model(("w", (8, 8), {"spec": Spec("embed", None)}))
    finding = single_finding([], "rule.invalid_spec", model=model)
    assert finding.what.startswith("The model's own spec gives w the spec P('embed', None)")


@pytest.mark.parametrize(
    ("expected", "severity", "message"),
    [
        ("tensor", "info", "'tensor' is already used for heads."),
        (
            ("tensor", "fsdp"),
            "warning",
            "'tensor' is already used for heads, and 'fsdp' shards no dimension of it.",
        ),
        (
            ("data", "fsdp"),
            "warning",
            "'data' is already used for heads, and 'fsdp' shards no dimension of it.",
        ),
    ],
)
def test_logical_rules_that_want_a_mesh_axis_twice_conflict(expected, severity, message):
    model = build_model(("w", (8192, 8192), {"axes": ("heads", "mlp")}))
    rules = {"logical": [("heads", ("tensor", "data")), ("mlp", expected)]}
    finding = single_finding(rules, "rule.conflict", model=model)
    assert finding.severity == severity
    assert finding.what == f"Logical rules leave 'mlp' of w unsharded: {message}"


_CUT = [(name, "tensor") for name in ("mlp", "heads", "kv_heads", "vocab")]


@pytest.mark.parametrize(
    ("name", "mesh", "code", "message"),
    [
        ("embd", "fsdp=4,tensor=2", "rule.unused", "rule for 'embd' matches no dimension, and 'em"),
        (
            "width",
            "fsdp=4,tensor=2",
            "rule.unmatched",
            "No logical rule names 'embed', a dimension",
        ),
        ("width", "fsdp=4,tensor=2", "rule.unmatched", "no tensor is sharded over 'fsdp'"),
        ("width", "data=4,tensor=2", None, ""),  # as in plain tensor parallelism
        ("embed", "fsdp=4,tensor=2", None, ""),
    ],
)
def test_a_dimension_without_a_logical_rule_is_reported(name, mesh, code, message):
    """8.0 GB on a device in place of 2.0 GB, for one letter."""
    rules = {"logical": [(name, "fsdp"), ("norm", None), *_CUT]}
    findings = lint_findings(rules, model=load_model("llama3-8b"), mesh=parse_mesh(mesh))
    assert [finding.code for finding in findings if finding.severity != "info"] == (
        [code] if code else []
    )
    assert all(message in finding.what for finding in findings)


def test_logical_rules_of_which_none_is_about_the_model_are_reported_once():
    rules = {"logical": [("width", "fsdp")]}
    finding = single_finding(
        rules, "rule.unmatched", model=load_model("llama3-8b"), mesh=Mesh(fsdp=4, tensor=2)
    )
    assert finding.what.startswith("No rule matches 291 tensors (16.1 GB)")
    assert "; or add logical rules for 'vocab', 'embed', 'norm', 'heads'" in finding.fix


def test_a_name_near_one_that_has_a_rule_is_no_typo():
    rules = {"logical": [("embed", "fsdp"), ("embedd", "fsdp"), ("norm", None), *_CUT]}
    assert (
        lint_findings(rules, model=load_model("llama3-8b"), mesh=parse_mesh("fsdp=4,tensor=2"))
        == ()
    )


def test_a_typo_in_a_logical_rules_mesh_axis_is_reported_and_an_axis_of_other_meshes_is_not():
    model = build_model(("w", (8, 8), {"axes": ("embed", "mlp")}))
    rules = {"logical": [("embed", "fdsp"), ("mlp", ("tensor", "fsdp_transpose", "expert"))]}
    finding = single_finding(rules, "rule.invalid_spec", model=model)
    assert finding.severity == "warning"
    assert finding.fix == "Did you mean 'fsdp'? The mesh is fsdp=2,tensor=3."


def test_a_reason_suppresses_lint_of_a_rule_but_not_an_error(tmp_path):
    path = tmp_path / "rules.toml"
    rule = "[[rules]]\npath = '{}'\nspec = '{}'\nreason = 'meant'\n"
    path.write_text(rule.format("nothing", "fsdp") + rule.format(".*", ""))
    assert lint_findings(path) == ()
    path.write_text(rule.format(".*", "data"))
    assert [finding.code for finding in lint_findings(path)] == ["rule.invalid_spec"]


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        *((item, True) for item in (".*", "", "^", ".", "(.*)", "a*", "^.+$")),
        *((item, False) for item in ("kernel", r"\w", "(a+)+", "a*b")),
    ],
)
def test_a_catch_all_matches_everything(pattern, is_one):
    assert is_catch_all(pattern) == is_one


# Rule sets as people have them. Not one may give a warning.
EASYLM_LLAMA = [  # in the manner of EasyLM's LLaMA, for the names of the checkpoint
    ("embed_tokens/weight", "tensor,fsdp"),
    ("self_attn/(q_proj|k_proj|v_proj)/weight", "tensor,fsdp"),
    ("self_attn/o_proj/weight", "fsdp,tensor"),
    ("mlp/gate_proj/weight", "tensor,fsdp"),
    ("mlp/down_proj/weight", "fsdp,tensor"),
    ("mlp/up_proj/weight", "tensor,fsdp"),
    ("layernorm/weight", "None"),
    ("norm/weight", "None"),
    ("lm_head/weight", "tensor,fsdp"),
    (".*", "None"),
]
SHORT = [
    (r"(q|k|v|gate|up)_proj\.weight$", "tensor,fsdp"),
    (r"(o|down)_proj\.weight$", "fsdp,tensor"),
    (r"(embed_tokens|lm_head)\.weight$", "tensor,fsdp"),
    (".*", ""),
]
MIXTURE = [
    (r"experts\.\d+\.(w1|w3)\.weight", "tensor,fsdp"),
    (r"experts\.\d+\.w2\.weight", "fsdp,tensor"),
    (r"block_sparse_moe\.gate", ""),
    (r"(q|k|v)_proj\.weight|embed_tokens|lm_head", "tensor,fsdp"),
    (r"o_proj\.weight", "fsdp,tensor"),
    ("norm", ""),
]
# MaxText's logical_axis_rules for weights (configs/base.yml, e591f30)
_TENSOR = ("tensor", "tensor_sequence", "autoregressive")
_FSDP = ("fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "expert")
MAXTEXT = {
    "logical": [
        ("activation_vocab", ("tensor", "tensor_sequence")),
        ("vocab", _TENSOR),
        ("embed_vocab", _FSDP),
        ("heads", _TENSOR),
        ("q_heads", _TENSOR),
        ("kv_heads", _TENSOR),
        ("qkv", ()),
        ("kv", ()),
        ("kv_head_dim", ()),
        ("q_lora", _FSDP),
        ("q_lora", ("fsdp", "context", "context_usp_ulysses", "expert")),
        ("q_lora_up_proj", ()),
        ("kv_lora", _FSDP),
        ("kv_lora_up_proj", ()),
        ("exp", "expert"),
        ("mlp_moe", ("fsdp_transpose", *_TENSOR)),
        ("embed_moe", _FSDP[:-1]),
        ("embed_moe", ("fsdp", "context", "context_usp_ulysses")),
        ("mlp", ("fsdp_transpose", *_TENSOR)),
        ("embed", _FSDP),
        ("embed", ("fsdp", "context", "context_usp_ulysses", "expert")),
        ("norm", "tensor"),
        ("layers", "stage"),
    ]
}


def nnx_like():
    """The tensors of an NNX transformer: kernels [in, out], slashes, stacked layers, axis names."""
    rows = [
        ("embedder/embedding", (32000, 4096), ("vocab", "embed")),
        ("layers/attn/query/kernel", (32, 4096, 32, 128), ("layers", "embed", "q_heads", "kv")),
        ("layers/attn/out/kernel", (32, 32, 128, 4096), ("layers", "q_heads", "kv", "embed")),
        ("layers/mlp/wi/kernel", (32, 4096, 14336), ("layers", "embed", "mlp")),
        ("layers/mlp/wo/kernel", (32, 14336, 4096), ("layers", "mlp", "embed")),
        ("layers/norm/scale", (32, 4096), ("layers", "norm")),
    ]
    return Model(
        name="nnx",
        groups=group_tensors(Tensor(path, shape, BF16, axes) for path, shape, axes in rows),
    )


NNX_RULES = [
    ("embedding", "tensor,fsdp"),
    ("attn/query/kernel", "..., fsdp, tensor, None"),
    ("attn/out/kernel", "..., tensor, None, fsdp"),
    ("mlp/wi/kernel", "..., fsdp, tensor"),
    ("mlp/wo/kernel", "..., tensor, fsdp"),
    ("scale", ""),
]
SENSIBLE = [
    *(
        (name, "fsdp=64,tensor=8", rules)
        for name in ("llama3-8b", "llama3-70b", "llama3.1-405b")
        for rules in (EASYLM_LLAMA, SHORT, MAXTEXT)
    ),
    ("mixtral-8x7b", "fsdp=16,tensor=4", MIXTURE),
    ("mixtral-8x7b", "fsdp=16,tensor=4", MAXTEXT),
    ("deepseek-v3", "fsdp=64,tensor=8", MAXTEXT),
    ("deepseek-v3", "data=2,fsdp=32,expert=8", MAXTEXT),
    (nnx_like, "fsdp=8,tensor=4", MAXTEXT),
    (nnx_like, "stage=4,fsdp=8,tensor=4", MAXTEXT),
    (nnx_like, "fsdp=8,tensor=4", NNX_RULES),
]


@pytest.mark.parametrize(("model", "mesh", "rules"), SENSIBLE)
def test_no_alarm_on_rules_that_make_sense(model, mesh, rules):
    model = model() if callable(model) else load_model(model)
    findings = lint_findings(rules, model=model, mesh=parse_mesh(mesh))
    assert [str(finding) for finding in findings if finding.severity != "info"] == []


@pytest.mark.parametrize("name", preset_names())
def test_maxtext_s_rules_are_no_alarm_for_any_preset(name):
    findings = lint_findings(
        MAXTEXT, model=load_model(name), mesh=parse_mesh("data=2,fsdp=4,tensor=2")
    )
    assert [str(finding) for finding in findings if finding.severity != "info"] == []


@pytest.mark.parametrize("stack", [None, "experts", "layers"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3-main"])
def test_maxtext_s_rules_give_deepseek_a_plan_without_errors(name, stack):
    """Its scales of fp8 blocks are too short for the cuts of their weights, and stay whole."""
    result = plan(name, "fsdp=32,expert=16", rules=MAXTEXT, stack=stack)
    assert [str(finding) for finding in result.findings if finding.severity != "info"] == []
