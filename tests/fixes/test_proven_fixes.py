"""Which edits are offered: what is proven, and nothing that is wrong on one device or a mesh."""

from __future__ import annotations

import pytest

from fixes.searching import changed_lines, search

FIXED = {
    "a psum for partial products": (
        "@jax.shard_map(in_specs=(P(None, 'data'), P('data')), out_specs=P(), check_vma=False)\n"
        "def step(x, w):\n"
        "    return x @ w  # partial products\n",
        ("f32[6,24]", "f32[24,5]"),
        [
            "-return x @ w  # partial products",
            '+return lax.psum(x @ w, "data")  # partial products',
        ],
    ),
    "a bias after the sum": (
        "@jax.shard_map(in_specs=(P(None, 'data'), P('data'), P()), out_specs=P())\n"
        "def step(x, w, b):\n"
        "    return lax.psum(x @ w + b, 'data')\n",
        ("f32[6,24]", "f32[24,5]", "f32[5]"),
        ["-return lax.psum(x @ w + b, 'data')", "+return lax.psum(x @ w, 'data') + b"],
    ),
    "a mean for a sum": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P())\n"
        "def step(x):\n"
        "    return lax.psum((x**2).mean(), 'data')\n",
        ("f32[24]",),
        [
            "-return lax.psum((x**2).mean(), 'data')",
            "+return lax.pmean((x**2).mean(), 'data')",
        ],
    ),
    "a mean over all tokens": (
        "@jax.shard_map(in_specs=(P('data'), P('data')), out_specs=P())\n"
        "def step(x, m):\n"
        "    return lax.pmean((x * m).sum() / (m * m).sum(), 'data')\n",
        ("f32[24]", "f32[24]"),
        [
            "-return lax.pmean((x * m).sum() / (m * m).sum(), 'data')",
            "+return lax.psum((x * m).sum(), 'data') / lax.psum((m * m).sum(), 'data')",
        ],
    ),
    "positions with an offset": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    return x * jnp.arange(x.shape[0])\n",
        ("f32[24]",),
        [
            "-return x * jnp.arange(x.shape[0])",
            '+return x * (lax.axis_index("data") * x.shape[0] + jnp.arange(x.shape[0]))',
        ],
    ),
    "a mesh axis with a typing error": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P())\n"
        "def step(x):\n"
        "    return lax.psum(x.sum(), 'date')\n",
        ("f32[24]",),
        ["-return lax.psum(x.sum(), 'date')", "+return lax.psum(x.sum(), 'data')"],
    ),
    "a reduce-scatter": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    full = lax.psum(x.T @ x, 'data')\n"
        "    n = 24 // lax.axis_size('data')\n"
        "    return lax.dynamic_slice_in_dim(full, lax.axis_index('data') * n, n)\n",
        ("f32[24,24]",),
        [
            "-full = lax.psum(x.T @ x, 'data')",
            "+full = lax.psum_scatter(x.T @ x, 'data', scatter_dimension=0, tiled=True)",
            "-return lax.dynamic_slice_in_dim(full, lax.axis_index('data') * n, n)",
            "+return full",
        ],
    ),
    "two mistakes": (
        "@jax.shard_map(in_specs=P('data'), out_specs=(P(), P()))\n"
        "def step(x):\n"
        "    return lax.psum(x.mean(), 'data'), lax.pmean((x**2).sum(), 'data')\n",
        ("f32[24]",),
        [
            "-return lax.psum(x.mean(), 'data'), lax.pmean((x**2).sum(), 'data')",
            "+return lax.pmean(x.mean(), 'data'), lax.psum((x**2).sum(), 'data')",
        ],
    ),
}


# The other families of edits, of which the tests above need no part.
FURTHER_FIXED = {
    "a gradient counted n times": (
        "def step(w, x):\n"
        "    @jax.shard_map(in_specs=(P(), P('data')), out_specs=P(), check_vma=False)\n"
        "    def gradient(w, x):\n"
        "        return lax.psum(jax.grad(lambda w: ((x * w) ** 2).mean())(w), 'data')\n"
        "    return w - 0.1 * gradient(w, x)\n",
        ("f32[5]", "f32[24,5]"),
        "data=4",
        "pmean",
    ),
    "a sum over the wrong mesh axis": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P(), check_vma=False)\n"
        "def step(x):\n"
        "    return lax.psum((x**2).sum(), 'model')\n",
        ("f32[24]",),
        "data=4,model=2",
        '"data"',
    ),
    "an error that check_vma=False hides": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P(), check_vma=False)\n"
        "def step(x):\n"
        "    return jnp.tanh((x**2).sum())\n",
        ("f32[24]",),
        "data=4",
        "lax.psum(",
    ),
    "a carry that varies only after the first iteration": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P())\n"
        "def step(x):\n"
        "    def add(total, row):\n"
        "        return total + row, None\n"
        "    total, _ = lax.scan(add, jnp.zeros(3), x)\n"
        "    return lax.psum(total, 'data')\n",
        ("f32[24,3]",),
        "data=4",
        "lax.pcast(",
    ),
    "a gather of which only the own shard is used": (
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    full = lax.all_gather(x * 2, 'data', tiled=True)\n"
        "    n = x.shape[0]\n"
        "    return lax.dynamic_slice_in_dim(full, lax.axis_index('data') * n, n)\n",
        ("f32[24,5]",),
        "data=4",
        "+",
    ),
    "a collective in a loop whose operand does not change": (
        "@jax.shard_map(in_specs=(P(), P('data')), out_specs=P('data'))\n"
        "def step(w, x):\n"
        "    def body(i, y):\n"
        "        mean = lax.pmean(x.mean(), 'data')\n"
        "        return y - 0.1 * mean\n"
        "    return lax.fori_loop(0, 3, body, x * w)\n",
        ("f32[5]", "f32[24,5]"),
        "data=4",
        "+mean = lax.pmean(x.mean(), 'data')",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FURTHER_FIXED)
def test_a_program_of_another_family_is_fixed(tmp_path, name):
    body, args, mesh, added = FURTHER_FIXED[name]
    found, _ = search(tmp_path, body, mesh, *args)
    assert found.fixes, found
    new_lines = [line for line in changed_lines(found.fixes[0]) if line[0] == "+"]
    assert any(added in line for line in new_lines), new_lines


@pytest.mark.parametrize("name", FIXED)
def test_a_program_is_fixed(tmp_path, name):
    body, args, lines = FIXED[name]
    found, path = search(tmp_path, body, "data=4", *args)
    assert found.fixes, found
    (fix,) = found.fixes
    assert sorted(changed_lines(fix)) == sorted(lines)
    assert {"data=2", "data=3", "data=4", "data=8"} >= set(fix.meshes) >= {"data=4", "data=8"}
    assert fix.n_inputs == 3
    # Nothing is written by a search.
    assert path.read_text().endswith(body)


def test_a_deadlock_is_fixed_by_a_mean_before_the_branch(tmp_path):
    body = (
        "@jax.shard_map(in_specs=(P('data'), P()), out_specs=P(), check_vma=False)\n"
        "def step(x, w):\n"
        "    g = jax.grad(lambda w: ((x @ w) ** 2).mean())(w)\n"
        "    norm = jnp.sqrt((g**2).sum())\n"
        "    return lax.cond(norm > 1.6, lambda g: lax.pmean(g / norm, 'data'), lambda g: g, g)\n"
    )
    found, _ = search(tmp_path, body, "data=4", "f32[24,5]", "f32[5,3]")
    (fix,) = found.fixes
    assert changed_lines(fix)[-1].startswith("+g = lax.pmean(jax.grad(")


def test_an_edit_that_changes_the_result_on_one_device_is_not_offered(tmp_path):
    # `x.sum() / 8` is the mean of 8 devices, and a division by 8 on one: only one of them is meant.
    body = (
        "@jax.shard_map(in_specs=P('data'), out_specs=P())\n"
        "def step(x):\n"
        "    return lax.psum(x.mean(), 'data') / 8\n"
    )
    found, _ = search(tmp_path, body, "data=8", "f32[24]")
    (fix,) = found.fixes
    assert changed_lines(fix)[-1] == "+return lax.pmean(x.mean(), 'data') / 8"


def test_an_edit_after_which_the_shape_depends_on_the_mesh_is_not_offered(tmp_path):
    # With in_specs=P() the values are those of one device, n times: `check` only notes the shape.
    body = (
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    return x + lax.axis_index('dp')\n"
    )
    found, _ = search(tmp_path, body, "data=4", "f32[24]")
    assert not any("P()" in line for fix in found.fixes for line in changed_lines(fix))


def test_a_program_that_no_edit_makes_right_gets_none_and_says_what_was_tried(tmp_path):
    # A running sum needs the totals of the devices before: more than one collective.
    body = (
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    return jnp.cumsum(x)\n"
    )
    found, _ = search(tmp_path, body, "data=4", "f32[24]")
    assert found.fixes == ()
    assert {item.family for item in found.rejected} >= {"missing psum", "spec"}
    assert all(item.reason and item.line for item in found.rejected)


def test_a_reference_decides_where_one_device_is_no_reference(tmp_path):
    body = (
        "@jax.shard_map(in_specs=(P('stage'), P()), out_specs=P())\n"
        "def step(kernels, x):\n"
        "    n = lax.axis_size('stage')\n"
        "    for _ in range(n):\n"
        "        pairs = [(i, (i + 1) % n) for i in range(n)]\n"
        "        x = lax.ppermute(x * kernels[0], 'stage', pairs)\n"
        "    return lax.pmean(x * (lax.axis_index('stage') == 0), 'stage')\n\n"
        "def plain(kernels, x):\n"
        "    return x * kernels[0] * kernels[1]\n"
    )
    args = ("f32[2]", "f32[3]")
    without, _ = search(tmp_path, body, "stage=2", *args)
    assert without.fixes == ()
    found, _ = search(tmp_path, body, "stage=2", *args, reference="plain")
    (fix,) = found.fixes
    assert changed_lines(fix)[-1].startswith("+return lax.psum(x * (lax.axis_index(")
    assert fix.meshes == ("stage=2",)
