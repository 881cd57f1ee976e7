"""Light import: `import shardlab` and layouts load neither JAX nor NumPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardlab

HEAVY = ("jax", "jaxlib", "flax", "numpy", "rich", "click")


def modules_loaded_by(code: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    """Return those of the heavy packages that `code` loads in a fresh process."""
    check = f"{code}\nimport sys; print([name for name in {names!r} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return eval(process.stdout.splitlines()[-1])


def test_import_shardlab_loads_nothing_heavy():
    assert modules_loaded_by("import shardlab; dir(shardlab); shardlab.__version__") == []


def test_layouts_and_their_pictures_load_nothing_heavy():
    code = (
        "import shardlab; kernel = shardlab.layout((8, 6), 'x', 'x=2'); kernel.text(); kernel.svg()"
    )
    assert modules_loaded_by(code) == []


def test_every_layout_name_loads_without_jax():
    code = (
        "from shardlab import LabError, Layout, Mesh, Spec, layout, parse_mesh, parse_spec, reshard"
    )
    assert modules_loaded_by(code) == []


def test_the_public_names_are_listed():
    assert set(shardlab.__all__) <= set(dir(shardlab))
    assert shardlab.layout((8,), "x", "x=2").shard_shape == (4,)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shardlab' has no attribute 'nope'"):
        shardlab.nope  # noqa: B018


@pytest.mark.parametrize("name", shardlab.__all__)
def test_every_public_name_can_be_loaded(name):
    assert getattr(shardlab, name) is not None


# ------------------------------------------------------------------------- databases and accounts

DATABASES = ("sqlalchemy", "alembic", "argon2")
TERMINAL_COMMANDS = [
    ["practice", "list"],
    ["practice", "start", "shard-map-psum"],
    ["practice", "history"],
    ["learn", "--once"],
    ["plan", "llama3-8b", "--mesh", "data=8,model=8"],
    ["layout", "8x6", "--mesh", "x=2", "--spec", "x"],
    ["catalogue", "list"],
    ["serve", "--help"],
]


@pytest.mark.parametrize("command", TERMINAL_COMMANDS, ids=" ".join)
def test_commands_of_the_terminal_load_no_sqlalchemy(command, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code = (
        f"from shardlab.cli import main\ntry:\n    main({command!r})\nexcept SystemExit:\n    pass"
    )
    assert modules_loaded_by(code, DATABASES) == []


def test_the_server_loads_argon2_with_accounts_only(tmp_path):
    local = (
        "from pathlib import Path\n"
        "from shardlab.server.application import create_app\n"
        "from shardlab.server.settings import ServerSettings\n"
        f"create_app(ServerSettings(data_folder=Path({str(tmp_path)!r})))"
    )
    assert "argon2" not in modules_loaded_by(local, DATABASES)
    with_accounts = local[:-2] + ", mode='accounts', secret='x' * 64))"
    assert "argon2" in modules_loaded_by(with_accounts, DATABASES)


def test_the_first_pages_are_served_without_fastapi_and_databases(tmp_path):
    code = (
        "from pathlib import Path\n"
        "import shardlab.server.serve\n"
        "from shardlab.server.settings import ServerSettings\n"
        "from shardlab.server.starting_application import StartingApplication\n"
        f"StartingApplication(ServerSettings(data_folder=Path({str(tmp_path)!r})))"
    )
    assert modules_loaded_by(code, ("fastapi", "pydantic", "markdown_it", *HEAVY, *DATABASES)) == [
        "click"
    ]
