"""Silencing: with a reason, on the line or in the configuration; never by accident."""

from __future__ import annotations

import pytest

from shardlab.analysis.project_config import Config, read_config
from shardlab.checks.check_codes import finding
from shardlab.checks.suppression import IgnoreRule, suppress_findings
from shardlab.errors import InvalidConfig
from shardlab.findings.source import SourceLocation

SUM = finding("hazard.psum_of_replicated", "A sum.", SourceLocation("models/mlp.py", 2), "Do not.")
WHOLE = finding("waste.replicated", "A whole array.", None, "Cut it.")


def left(line, above="", found=SUM, ignores=()):
    lines = {2: line, 1: above}
    kept, silenced = suppress_findings([found], lambda place: lines.get(place.line, ""), ignores)
    return [each.code for each in kept], [each.reason for each in silenced]


def test_a_comment_with_a_reason_silences_the_finding_of_its_line():
    line = "y = psum(x)  # shardlab: ignore[hazard.psum_of_replicated] divided out in loss()"
    assert left(line) == ([], ["divided out in loss()"])


def test_a_comment_on_the_line_above_counts_if_it_is_nothing_else():
    comment = "# shardlab: ignore[waste.replicated, hazard.psum_of_replicated] meant so"
    assert left("y = psum(x)", above=f"    {comment}") == ([], ["meant so"])
    assert left("y = psum(x)", above=f"z = f(x)  {comment}") == (["hazard.psum_of_replicated"], [])


def test_a_comment_for_another_code_silences_nothing():
    line = "y = psum(x)  # shardlab: ignore[waste.replicated] meant so"
    assert left(line) == (["hazard.psum_of_replicated"], [])


@pytest.mark.parametrize(
    ("comment", "trouble"),
    [
        ("# shardlab: ignore[hazard.psum_of_replicated]", "gives no reason"),
        ("# shardlab: ignore because I say so", "names no code"),
        (
            "# shardlab: ignore[hazard.psum_unvarys] meant so",
            "did you mean 'hazard.psum_of_replicated'",
        ),
    ],
)
def test_a_comment_that_is_not_understood_is_a_finding_itself(comment, trouble):
    kept, silenced = suppress_findings(
        [SUM], lambda place: f"y = psum(x)  {comment}" * (place.line == 2)
    )
    assert [each.code for each in kept] == ["hazard.psum_of_replicated", "ignore.invalid"]
    assert trouble in kept[1].what
    assert kept[1].where == SUM.where
    assert "ignore[hazard.psum_of_replicated] why" in kept[1].fix
    assert not silenced


def test_an_entry_of_the_configuration_holds_for_its_files():
    ignore = IgnoreRule("hazard.psum_of_replicated", "old code", "models/*.py")
    assert left("", ignores=[ignore]) == ([], ["old code"])
    elsewhere = IgnoreRule("hazard.psum_of_replicated", "old code", "data/*.py")
    assert left("", ignores=[elsewhere]) == (["hazard.psum_of_replicated"], [])


def test_a_finding_without_a_line_is_silenced_by_an_entry_without_a_path():
    assert left("", found=WHOLE, ignores=[IgnoreRule("waste.replicated", "it fits")])[1] == [
        "it fits"
    ]
    ignore = IgnoreRule("waste.replicated", "it fits", "models/*.py")
    assert left("", found=WHOLE, ignores=[ignore])[0] == ["waste.replicated"]


# ------------------------------------------------------------------------------- pyproject.toml


@pytest.mark.parametrize("is_relative", [False, True])
def test_the_nearest_pyproject_is_read_and_its_paths_are_relative_to_it(
    tmp_path, monkeypatch, is_relative
):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.shardlab]\nreplicated_bytes = 1024\n"
        'ignore = [{code = "hazard.psum_of_replicated", path = "models/*.py", reason = "old code"}]\n'
    )
    models = tmp_path / "models"
    models.mkdir()
    (models / "mlp.py").write_text("import jax\ny = psum(x)\n")
    monkeypatch.chdir(models)
    config = read_config()
    assert config.replicated_bytes == 1024
    file = "mlp.py" if is_relative else str(models / "mlp.py")
    found = finding("hazard.psum_of_replicated", "A sum.", SourceLocation(file, 2), "Do not.")
    kept, silenced = config.silence([found])
    assert (kept, [each.reason for each in silenced]) == ((), ["old code"])


def test_a_comment_is_read_from_the_file_itself(tmp_path):
    file = tmp_path / "step.py"
    file.write_text("# shardlab: ignore[hazard.psum_of_replicated] a test\ny = psum(x)\n")
    found = finding("hazard.psum_of_replicated", "A sum.", SourceLocation(str(file), 2), "Do not.")
    assert [each.reason for each in Config().silence([found])[1]] == ["a test"]


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("ignore = 3", "tool.shardlab.ignore", "a list of tables"),
        ("ignroe = []", "tool.shardlab.ignroe", "did you mean 'ignore'?"),
        ("replicated_bytes = '64 MiB'", "replicated_bytes", "a whole number of bytes"),
        ('ignore = [{code = "waste.replicated"}]', "ignore[0].reason", "a reason, as text"),
        ('ignore = [{code = "waste", reason = "x"}]', "ignore[0].code", "codes"),
        (
            'ignore = [{code = "waste.replicated", file = "x", reason = "y"}]',
            "ignore[0].file",
            "path",
        ),
    ],
)
def test_a_configuration_that_is_not_understood_names_file_and_key(tmp_path, text, where, fix):
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.shardlab]\n{text}\n")
    with pytest.raises(InvalidConfig) as caught:
        read_config(tmp_path)
    assert str(file) in caught.value.where
    assert where in caught.value.where
    assert fix in caught.value.fix


def test_a_file_that_is_not_toml_says_where(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.shardlab\n")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_config(tmp_path)
