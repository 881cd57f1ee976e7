"""Layers: which room may import what, as a table, checked in the source."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "shardlab"
OURS = "shardlab."

# room -> what its files may import at the top, beside the standard library and their own room
ROOMS = {
    "errors": set(),
    "layouts": {"shardlab.errors"},
    "records": {"shardlab.errors", "shardlab.layouts"},
    "hlo": {"shardlab.errors", "shardlab.records"},
    "cost": {"shardlab.errors", "shardlab.layouts", "shardlab.records"},
    "checks": {"shardlab.errors", "shardlab.layouts", "shardlab.records", "shardlab.cost", "numpy"},
    "render": {"shardlab.errors", "shardlab.layouts", "shardlab.records", "shardlab.cost"},
    "engine": {
        "shardlab.errors",
        "shardlab.layouts",
        "shardlab.records",
        "shardlab.cost",
        "shardlab.hlo",
        "jax",
        "jaxlib",
        "flax",
        "numpy",
    },
    "plans": {"shardlab.errors", "shardlab.layouts", "shardlab.records", "shardlab.cost"},
    "frames": {"shardlab.errors", "shardlab.layouts", "numpy"},
    "sandbox": {"shardlab.errors", "shardlab.frames.frame"},
    "cell": {
        "shardlab.errors",
        "shardlab.layouts",
        "shardlab.records",
        "shardlab.frames",
        "shardlab.cost",
        "shardlab.hlo",
        "shardlab.checks",
        "shardlab.engine",
        "jax",
        "flax",
        "numpy",
    },
    "catalogue": {"shardlab.errors", "shardlab.layouts", "shardlab.records", "numpy"},
    "judge": {
        "shardlab.errors",
        "shardlab.layouts",
        "shardlab.records",
        "shardlab.cost",
        "shardlab.checks",
        "shardlab.frames",
        "shardlab.catalogue",
        "shardlab.sandbox",
        "numpy",
    },
    "store": {"shardlab.errors", "shardlab.records"},
    "practice": {
        "shardlab.errors",
        "shardlab.layouts",
        "shardlab.records",
        "shardlab.catalogue.problem",
        "shardlab.catalogue.tracks",
        "shardlab.store",
        "shardlab.sandbox.guest",
    },
    "cli": {"shardlab", "shardlab.errors", "click"},
}
# room -> what its files may also import inside functions
INSIDE = {
    "errors": set(),
    "layouts": {"shardlab.render"},  # Layout.svg() and its relatives ask for their drawing
    # str(trace) asks for its text, plan.save(...) for its file
    "records": {
        "shardlab.render",
        "shardlab.cost",
        "shardlab.plans.golden.saved",
        "shardlab.plans.golden.compare",
    },
    "hlo": set(),
    "cost": set(),
    "checks": set(),
    "render": {"rich"},
    "engine": {"shardlab.render", "rich", "orbax", "optax"},
    # a search under a time limit; a model that is a JAX object;
    # the store that an Orbax checkpoint keeps its shapes in
    "plans": {"regex", "tensorstore", "shardlab.engine.abstract"},
    "frames": {"ml_dtypes"},
    "sandbox": {"shardlab.cell"},  # the fork server loads what its guests will need
    "cell": {"shardlab.lab"},
    # the audit judges
    "catalogue": {"shardlab.judge", "shardlab.render", "shardlab.sandbox", "shardlab.frames"},
    "judge": set(),
    "store": set(),
    "practice": {"shardlab.judge", "shardlab.sandbox"},  # NumPy is loaded by the first judging
    "cli": {"shardlab", "rich", "jax"},
}
# file beside the rooms -> what it may import beside the standard library and ours
TOP_FILES = {"pytest_plugin.py": {"pytest"}}  # loaded by pytest, so pytest is there
NOT_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "base", "misc"}


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands, and whether it stands at the top."""

    path: Path
    line: int
    module: str
    is_top: bool

    def __str__(self):
        return f"{self.path.relative_to(SRC)}:{self.line} imports {self.module}"


def imports(path):
    tree = ast.parse(path.read_text("utf-8"))
    inside = {
        node
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(scope)
    }
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(path, node.lineno, name, node not in inside)


def is_under(module, allowed):
    return any(module == name or module.startswith(name + ".") for name in allowed)


# Exercises are content: their own audit says what they must be.
FILES = sorted(p for p in SRC.rglob("*.py") if "problems" not in p.relative_to(SRC).parts)
ROOM_FILES = [path for path in FILES if path.parent != SRC]


def shown(path):
    return str(path.relative_to(SRC))


@pytest.mark.parametrize("path", ROOM_FILES, ids=shown)
def test_each_room_imports_only_what_its_row_allows(path):
    room = path.relative_to(SRC).parts[0]
    assert room in ROOMS, f"give the new room {room!r} a row in the table"
    own = {f"{OURS}{room}"}
    for each in imports(path):
        if each.module.split(".")[0] in sys.stdlib_module_names:
            continue
        allowed = ROOMS[room] | own | (set() if each.is_top else INSIDE[room])
        assert is_under(each.module, allowed), str(each)


def test_the_top_files_import_the_standard_library_and_each_other():
    for path in FILES:
        if path.parent == SRC:
            for each in imports(path):
                root = each.module.split(".")[0]
                extra = TOP_FILES.get(path.name, set())
                assert root in {*sys.stdlib_module_names, "shardlab", *extra}, str(each)


def test_private_jax_names_live_in_one_place():
    # engine/_jax.py, or files of a package engine/_jax/
    for path in FILES:
        parts = path.relative_to(SRC).with_suffix("").parts
        if parts[:2] != ("engine", "_jax"):
            for each in imports(path):
                assert not is_under(each.module, {"jax._src", "jaxlib"}), str(each)


def test_no_file_has_a_name_that_says_nothing():
    for path in SRC.rglob("*"):
        assert path.stem.strip("_") not in NOT_NAMES, path


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_one_noun_of_at_most_400_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_function_is_one_stage_of_at_most_40_lines(path):
    """Counted from `def` to the end, without the docstring and without decorators."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
            n_lines = node.end_lineno - node.lineno + 1 - docstring
            assert n_lines <= 40, f"{shown(path)}:{node.lineno} {node.name} has {n_lines} lines"


def test_no_two_test_files_have_one_name():
    # The folders of tests are no packages, so that pytest would refuse the second of a name.
    found = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted({name for name in found if found.count(name) > 1}) == []
