"""Layers: which package may import what, as a table, checked in the source."""

from __future__ import annotations

import ast
import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "shardlab"

# Packages and top-level modules, lowest first. A module imports its own package and those above it
# in this list; imports inside functions count, those under TYPE_CHECKING do not.
LAYERS = (
    "errors",
    "_text",
    "_files",
    "render",
    "sharding",
    "findings",
    "fixes",
    "collectives",
    "hardware",
    "_jax",
    "simulator",
    "tracing",
    "checks",
    "analysis",
    "recording",
    "planner",
    "autoshard",
    "execution",
    "cluster",
    "sandbox",
    "catalogue",
    "judge",
    "course",
    "server",
    "testing",
    "pytest_plugin",
    "cli",
    "__main__",
)

# The longest prefix that fits a module decides which third-party packages it may import.
THIRD_PARTY = {
    "": set(),  # standard library only
    "_files.yaml_reader": {"yaml"},
    "render": {"rich"},
    "sharding": {"rich"},
    "findings": {"rich"},
    "hardware": {"rich"},
    "_jax": {"jax", "jaxlib", "numpy"},
    "simulator": {"jax", "flax", "numpy", "rich"},
    "simulator.run_records": set(),
    "tracing": {"jax", "flax", "numpy"},
    # Records, renderers and the HLO reader work on plain data: reports of them load no JAX.
    "tracing.hlo": set(),
    "tracing.observation": set(),
    "tracing.trace": {"rich"},
    "tracing.trace_estimate": set(),
    "tracing.trace_text": {"rich"},
    "tracing.call_groups": set(),
    "tracing.collective_style": set(),
    "tracing.timeline": set(),
    "tracing.traffic_bars": set(),
    "tracing.ring_steps_picture": set(),
    # Code that decides never runs a program, so it has no use for JAX.
    "checks": {"numpy"},
    "analysis": {"jax", "numpy"},
    "recording": {"jax", "numpy"},
    # Records and what is made of them load no JAX: the server reads recordings and never runs one.
    "recording.recording": set(),
    "recording.step_records": set(),
    "recording.device_sets": set(),
    "recording.recording_text": set(),
    "recording.timeline_schedule": set(),
    "recording.comparison": set(),
    "recording.edits": set(),
    "recording.example_gallery": set(),
    "recording.offline_page": set(),
    "recording.perfetto": set(),
    "recording.notebook": {"anywidget", "traitlets"},
    "planner": {"regex", "rich", "tensorstore"},
    "planner.models.jax_model": {"jax", "flax", "optax", "orbax"},
    "autoshard": set(),
    "autoshard.arguments": {"jax"},
    "autoshard.find_shardings": {"jax"},
    # The answer crosses to the process of the command, which loads no JAX.
    "autoshard.answer_text": {"rich"},
    "autoshard.proof": {"jax", "numpy"},
    "autoshard.proof.proof_record": set(),
    "autoshard.proof.device_messages": set(),
    "autoshard.proof.collective_comparison": set(),
    "judge": {"numpy", "ml_dtypes", "rich"},
    "judge.worker": {"jax", "flax", "numpy"},
    "catalogue": {"numpy"},
    "course": {"numpy", "rich"},
    # Pages and queues: programs run in workers, so the web process has no use for JAX.
    "server.people.passwords": {"argon2"},
    "server.people.webauthn_responses": {"fido2"},
    # Only where a PostgreSQL database is used, which the extra `postgresql` is for.
    "server.database.postgresql": {"psycopg", "sqlalchemy"},
    "server.jobs.pgqueuer_dispatch": {"pgqueuer", "psycopg", "sqlalchemy"},
    "server.jobs.pgqueuer_tables": {"pgqueuer"},
    "server.jobs.job_changes": {"psycopg", "sqlalchemy"},
    "server.operations.metrics_text": {"prometheus_client"},
    "server": {
        "fastapi",
        "pydantic",
        "starlette",
        "uvicorn",
        "jinja2",
        "sqlalchemy",
        "alembic",
        "click",
        # Statements as HTML, and their programs in color.
        "markdown_it",
        "markupsafe",
        "pygments",
    },
    "testing": set(),
    "pytest_plugin": {"pytest"},
    # The launcher decides and never loads JAX; each process and the simulation do.
    "cluster": set(),
    "cluster.comparison": {"numpy", "ml_dtypes"},
    "cluster.observed_programs": {"jax", "numpy"},
    "cluster.real_run": {"jax"},
    "cluster.run_target": {"jax", "numpy"},
    "cluster.process_worker": {"jax"},
    "cluster.joined_cluster": {"jax"},
    "execution": set(),
    "execution.load_target": {"jax"},
    "cli": {"click", "rich"},
    "cli.run": {"click", "jax"},
}
NOT_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "base", "misc"}
LONGEST_FILE = 500
LONG_FILES = {"errors.py"}  # every error class, with the tree drawn on top


@dataclass(frozen=True)
class Import:
    """One imported module and the line that imports it."""

    path: Path
    line: int
    module: str

    def __str__(self):
        return f"{self.path.relative_to(SRC)}:{self.line} imports {self.module}"


@functools.cache  # two tests per file, and some for all files
def imports(path):
    return tuple(find_imports(path))


def find_imports(path):
    tree = ast.parse(path.read_text("utf-8"))
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
            yield Import(path, node.lineno, name)


# Problems are content: their own audit says what they must be.
FILES = sorted(path for path in SRC.rglob("*.py") if "problems" not in path.relative_to(SRC).parts)


def relative(path):
    return str(path.relative_to(SRC))


def dotted(path):
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def longest_prefix(module, table):
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in table), "")


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_to_lower_layers(path):
    module = dotted(path)
    if module == "__init__":  # the public names, loaded when first used
        return
    layer = module.split(".")[0]
    assert layer in LAYERS, f"give the new package {layer!r} its place in LAYERS"
    for imported in imports(path):
        parts = imported.module.split(".")
        if parts[0] == "shardlab" and parts[1] != "__version__":
            assert LAYERS.index(parts[1]) <= LAYERS.index(layer), str(imported)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_third_party_packages_stay_where_the_table_allows_them(path):
    allowed = THIRD_PARTY[longest_prefix(dotted(path), THIRD_PARTY)]
    for imported in imports(path):
        root = imported.module.split(".")[0]
        assert root in {*sys.stdlib_module_names, "shardlab", *allowed}, str(imported)


def test_every_row_of_the_tables_names_something():
    modules = {dotted(path) for path in FILES}
    packages = {".".join(name.split(".")[:n]) for name in modules for n in range(1, 6)}
    assert [name for name in (*LAYERS, *THIRD_PARTY) if name and name not in packages] == []


def test_private_jax_names_are_used_in_one_package():
    for path in FILES:
        if path.relative_to(SRC).parts[0] != "_jax":
            for imported in imports(path):
                assert not imported.module.startswith(("jax._src", "jaxlib")), str(imported)


def test_no_file_name_is_a_catch_all():
    for path in SRC.rglob("*"):
        # base.html is what every Jinja project calls the frame of its pages.
        if path.suffix != ".html":
            assert path.stem.strip("_") not in NOT_NAMES, path


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_is_one_concept_of_at_most_500_lines(path):
    if relative(path) not in LONG_FILES:
        assert len(path.read_text("utf-8").splitlines()) <= LONGEST_FILE


def test_no_two_test_files_have_one_name():
    # The folders of tests are no packages, so pytest rejects the second file of a name.
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
