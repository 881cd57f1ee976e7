"""Light import: `import shardlab` and layouts bring in neither JAX nor NumPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardlab

HEAVY = ("jax", "jaxlib", "flax", "numpy", "rich", "click")


def loaded_by(code: str) -> list[str]:
    """The heavy packages that are loaded after `code`, in a fresh process."""
    check = f"{code}\nimport sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout.splitlines()[-1])


def test_import_shardlab_loads_nothing_heavy():
    assert loaded_by("import shardlab; dir(shardlab); shardlab.__version__") == []


def test_layouts_and_their_pictures_load_nothing_heavy():
    code = "import shardlab; one = shardlab.layout((8, 6), 'x', 'x=2'); one.text(); one.svg()"
    assert loaded_by(code) == []


def test_every_layout_name_loads_without_jax():
    code = (
        "from shardlab import LabError, Layout, Mesh, Spec, layout, parse_mesh, parse_spec, reshard"
    )
    assert loaded_by(code) == []


def test_the_public_names_are_listed():
    assert set(shardlab.__all__) <= set(dir(shardlab))
    assert shardlab.layout((8,), "x", "x=2").shard_shape == (4,)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shardlab' has no attribute 'nope'"):
        shardlab.nope  # noqa: B018


@pytest.mark.parametrize("name", shardlab.__all__)
def test_every_public_name_is_where_the_table_says(name):
    assert getattr(shardlab, name) is not None
