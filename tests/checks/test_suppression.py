"""Suppression: with a reason, on the line or in the configuration; never by accident."""

from __future__ import annotations

import pytest

from shardlab.analysis.project_config import ProjectConfig, read_config
from shardlab.checks.check_codes import make_finding
from shardlab.checks.suppression import IgnoreRule, suppress_findings
from shardlab.errors import InvalidConfig
from shardlab.findings.source import SourceLocation

SUM = make_finding(
    "hazard.psum_of_replicated", "A sum.", SourceLocation("models/mlp.py", 2), "Do not."
)
REPLICATED = make_finding("waste.replicated", "A large array.", None, "Shard it.")


def suppress(line, above="", finding=SUM, rules=()):
    lines = {2: line, 1: above}
    remaining, suppressed = suppress_findings(
        [finding], lambda location: lines.get(location.line, ""), rules
    )
    return [item.code for item in remaining], [item.reason for item in suppressed]


def test_a_comment_with_a_reason_suppresses_the_finding_of_its_line():
    line = "y = psum(x)  # shardlab: ignore[hazard.psum_of_replicated] divided out in loss()"
    assert suppress(line) == ([], ["divided out in loss()"])


def test_a_comment_on_the_line_above_counts_if_it_is_nothing_else():
    comment = "# shardlab: ignore[waste.replicated, hazard.psum_of_replicated] meant so"
    assert suppress("y = psum(x)", above=f"    {comment}") == ([], ["meant so"])
    assert suppress("y = psum(x)", above=f"z = f(x)  {comment}") == (
        ["hazard.psum_of_replicated"],
        [],
    )


def test_a_comment_for_another_code_suppresses_nothing():
    line = "y = psum(x)  # shardlab: ignore[waste.replicated] meant so"
    assert suppress(line) == (["hazard.psum_of_replicated"], [])


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("# shardlab: ignore[hazard.psum_of_replicated]", "gives no reason"),
        ("# shardlab: ignore because I say so", "names no code"),
        (
            "# shardlab: ignore[hazard.psum_of_replicates] meant so",
            "Did you mean 'hazard.psum_of_replicated'?",
        ),
    ],
)
def test_an_invalid_comment_is_a_finding_itself(comment, problem):
    remaining, suppressed = suppress_findings(
        [SUM], lambda location: f"y = psum(x)  {comment}" * (location.line == 2)
    )
    assert [finding.code for finding in remaining] == [
        "hazard.psum_of_replicated",
        "ignore.invalid",
    ]
    assert problem in remaining[1].what
    assert remaining[1].where == SUM.where
    assert "ignore[hazard.psum_of_replicated] with the reason" in remaining[1].fix
    assert not suppressed


def test_a_rule_of_the_configuration_applies_to_its_files():
    rule = IgnoreRule("hazard.psum_of_replicated", "old code", "models/*.py")
    assert suppress("", rules=[rule]) == ([], ["old code"])
    elsewhere = IgnoreRule("hazard.psum_of_replicated", "old code", "data/*.py")
    assert suppress("", rules=[elsewhere]) == (["hazard.psum_of_replicated"], [])


def test_a_finding_without_a_line_is_suppressed_by_a_rule_without_a_path():
    assert suppress("", finding=REPLICATED, rules=[IgnoreRule("waste.replicated", "it fits")])[
        1
    ] == ["it fits"]
    rule = IgnoreRule("waste.replicated", "it fits", "models/*.py")
    assert suppress("", finding=REPLICATED, rules=[rule])[0] == ["waste.replicated"]


# ------------------------------------------------------------------------------- pyproject.toml


@pytest.mark.parametrize("is_relative", [False, True])
def test_the_nearest_pyproject_is_read_and_its_paths_are_relative_to_it(
    tmp_path, monkeypatch, is_relative
):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.shardlab]\nreplicated_bytes = 1024\n"
        'ignore = [{code = "hazard.psum_of_replicated", path = "models/*.py", '
        'reason = "old code"}]\n'
    )
    models = tmp_path / "models"
    models.mkdir()
    (models / "mlp.py").write_text("import jax\ny = psum(x)\n")
    monkeypatch.chdir(models)
    config = read_config()
    assert config.replicated_bytes == 1024
    file = "mlp.py" if is_relative else str(models / "mlp.py")
    finding = make_finding(
        "hazard.psum_of_replicated", "A sum.", SourceLocation(file, 2), "Do not."
    )
    remaining, suppressed = config.suppress([finding])
    assert (remaining, [item.reason for item in suppressed]) == ((), ["old code"])


def test_a_comment_is_read_from_the_file_itself(tmp_path):
    file = tmp_path / "step.py"
    file.write_text("# shardlab: ignore[hazard.psum_of_replicated] a test\ny = psum(x)\n")
    finding = make_finding(
        "hazard.psum_of_replicated", "A sum.", SourceLocation(str(file), 2), "Do not."
    )
    assert [item.reason for item in ProjectConfig().suppress([finding])[1]] == ["a test"]


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("ignore = 3", "tool.shardlab.ignore", "a list of tables"),
        ("ignroe = []", "tool.shardlab.ignroe", "Did you mean 'ignore'?"),
        ("replicated_bytes = '64 MiB'", "replicated_bytes", "an integer, in bytes"),
        ('ignore = [{code = "waste.replicated"}]', "ignore[0].reason", "a reason, as text"),
        ('ignore = [{code = "x", reason = "x"}]', "ignore[0].code", "codes"),
        (
            'ignore = [{code = "waste.replicated", file = "x", reason = "y"}]',
            "ignore[0].file",
            "path",
        ),
    ],
)
def test_an_invalid_configuration_names_file_and_key(tmp_path, text, where, fix):
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.shardlab]\n{text}\n")
    with pytest.raises(InvalidConfig) as raised:
        read_config(tmp_path)
    assert str(file) in raised.value.where
    assert where in raised.value.where
    assert fix in raised.value.fix


def test_a_file_that_is_not_toml_is_rejected(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.shardlab\n")
    with pytest.raises(InvalidConfig, match="Cannot read"):
        read_config(tmp_path)
