"""Facts that several project files state: each must say the same."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = tomllib.loads(PYPROJECT)["project"]
CI = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")

# These follow the JAX release under test, so no version of them is right everywhere.
FOLLOW_JAX = {"jax", "jaxlib", "flax", "numpy", "optax", "equinox"}


def read_constraints() -> dict[str, str]:
    lines = (ROOT / "constraints-dev.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins), "exact versions"
    return {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in pins}


def list_requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]


def test_the_license_is_the_full_text_of_apache_2():
    # The hash of the file that JAX distributes.
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.mark.parametrize("requirement", list_requirements())
def test_every_dependency_has_a_reason(requirement):
    assert re.search(rf'"{re.escape(requirement)}",? +# \w+', PYPROJECT)


def test_constraints_pin_every_development_tool_within_its_range():
    pins = read_constraints()
    tools = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]
    for tool in tools:
        if tool.name not in FOLLOW_JAX:
            assert pins[canonicalize_name(tool.name)] in tool.specifier
    assert not FOLLOW_JAX & pins.keys()


def test_ci_covers_every_supported_python_and_the_oldest_jax():
    matrix = CI["jobs"]["test"]["strategy"]["matrix"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix["python"] == supported
    assert f">={supported[0]}" == PROJECT["requires-python"]
    (jax,) = (r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "jax")
    assert jax.specifier == SpecifierSet(f">={matrix['jax'][0]}")
    assert matrix["jax"][1:] == ["newest"]


def test_ci_has_least_privilege_and_pinned_actions():
    assert CI["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in CI["jobs"].values())
    actions = [
        step["uses"] for job in CI["jobs"].values() for step in job["steps"] if "uses" in step
    ]
    assert actions
    assert [name for name in actions if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)] == []


def test_hooks_run_the_tools_of_the_development_environment():
    (local,) = (repo for repo in HOOKS["repos"] if repo["repo"] == "local")
    commands = {hook["id"]: hook["entry"].split()[0] for hook in local["hooks"]}
    assert commands == {
        "ruff-check": ".venv/bin/ruff",
        "ruff-format": ".venv/bin/ruff",
        "mypy": ".venv/bin/mypy",
    }


def test_the_index_lists_every_decision_in_order():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8")
    titles = [path.read_text("utf-8").splitlines()[0] for path in DECISIONS]
    expected = [
        f"- [{path.name[:4]}]({path.name}) {title.removeprefix(f'# {path.name[:4]}: ')}"
        for path, title in zip(DECISIONS, titles, strict=True)
    ]
    assert [line for line in index.splitlines() if line.startswith("- ")] == expected
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_short_and_has_three_parts(path):
    text = path.read_text("utf-8")
    parts = re.findall(r"^\*\*(\w+)\.\*\* ", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 30  # some have a table of what was measured


@pytest.mark.parametrize(
    "path",
    [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "decisions" / "README.md", *DECISIONS],
    ids=lambda path: path.stem,
)
def test_links_lead_to_a_file(path):
    links = [link for link in LINK.findall(path.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
