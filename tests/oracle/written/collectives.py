"""Every collective, with every option it has."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32

program = ProgramTable()


def axes_label(axes):
    return axes if isinstance(axes, str) else "_then_".join(axes)


# -------------------------------------------------------------------------------------- reductions

for _reduce in (lax.psum, lax.pmean, lax.pmax, lax.pmin):
    for _axes in ("data", "model", ("data", "model"), ("model", "data")):
        program.add(
            f"{_reduce.__name__}_over_{axes_label(_axes)}",
            "data=2,model=4",
            [f32(6, 12)],
            lambda w, reduce=_reduce, axes=_axes: w.shard_map(
                lambda x: reduce(x * x + x, axes),
                in_specs=P("data", "model"),
                out_specs=P(*(n if n not in axes else None for n in ("data", "model"))),
            ),
            grad=_reduce in (lax.psum, lax.pmean),
        )


@program("data=2,model=4", f32(6, 5))
def psum_of_replicated_value_multiplies(w):
    return w.shard_map(
        lambda x: lax.psum(jnp.sin(x), "model"), in_specs=P("data"), out_specs=P("data")
    )


@program("data=2,model=4", f32(6, 5))
def psum_of_a_constant_counts_devices(w):
    return w.shard_map(
        lambda x: x * lax.psum(1, ("data", "model")) + lax.psum(2.5, "data"),
        in_specs=P("data"),
        out_specs=P("data"),
    )


@program("data=2,model=4", f32(6, 12), f32(4, 5))
def psum_of_a_tree(w):
    return w.shard_map(
        lambda x, y: lax.psum({"x": x, "y": [y, y.sum()]}, "model"),
        in_specs=(P("data", "model"), P("model")),
        out_specs={"x": P("data"), "y": [P(), P()]},
    )


@program("data=2,model=4", f32(6, 12), f32(12, 10))
def psum_of_a_product_with_both_operands_sharded(w):
    return w.shard_map(
        lambda x, y: lax.psum(x @ y, "model"),
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
    )


@program("data=2,model=4", f32(6, 12), f32(12, 10), f32(3, 10))
def psum_of_products_after_linear_operations(w):
    def body(x, y, z):
        product = -((x @ y).T.reshape(5, 2, -1) * 3.0).sum(0) + z.sum()
        return lax.psum(product, "model"), lax.psum((x @ y).T * z.sum(), ("model", "data"))

    return w.shard_map(
        body,
        in_specs=(P("data", "model"), P("model"), P(None, None)),
        out_specs=(P(None, "data"), P()),
    )


@program("data=2,model=4", f32(6, 12), f32(12, 10), f32(4, 10))
def psum_of_a_product_scaled_by_a_varying_factor(w):
    return w.shard_map(
        lambda x, y, z: lax.psum((x @ y) * z, "model") + lax.psum((x @ y) * z.sum(), "model"),
        in_specs=(P("data", "model"), P("model"), P("model")),
        out_specs=P("data"),
    )


@program("data=2,model=4", f32(2, 6, 12), f32(2, 12, 10))
def psum_over_a_vmapped_axis_and_a_mesh_axis(w):
    def body(x, y):
        def multiply_row(a, b):
            return lax.psum(a @ b, ("batch", "model")), lax.pmax(
                lax.stop_gradient(a), ("model", "batch")
            )

        return jax.vmap(multiply_row, axis_name="batch", out_axes=None)(x, y)

    return w.shard_map(
        body,
        in_specs=(P(None, "data", "model"), P(None, "model")),
        out_specs=(P("data"), P("data")),
        # With it JAX raises: a vmapped axis is not among the varying ones.
        check_vma=False,
    )


@program("x=8", f32(16, 3), grad=False)
def psum_in_groups(w):
    groups = [[0, 3], [1, 2], [6, 4], [5, 7]]
    return w.shard_map(
        lambda x: lax.psum(x, "x", axis_index_groups=groups),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )


@program("x=8", f32(16, 3), grad=False)
def psum_and_pmax_in_groups_of_different_sizes(w):
    groups = [[0, 3, 1], [2, 6, 4, 5, 7]]
    return w.shard_map(
        lambda x: (
            lax.psum(x, "x", axis_index_groups=groups),
            lax.pmax(x, "x", axis_index_groups=groups),
        ),
        in_specs=P("x"),
        out_specs=(P("x"), P("x")),
        check_vma=False,
    )


@program("x=8", f32(16, 3), grad=False)
def pmax_and_pmin_in_groups(w):
    groups = [[0, 2, 4, 6], [7, 5, 3, 1]]
    return w.shard_map(
        lambda x: (
            lax.pmax(x, "x", axis_index_groups=groups) - lax.pmin(x, "x", axis_index_groups=groups)
        ),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=False,
    )


@program("x=8", f32(16, 3), grad=False)
def pmean_in_groups_of_replicated_value(w):
    groups = [[0, 2, 4, 6], [7, 5, 3, 1]]
    return w.shard_map(
        lambda x: lax.pmean(x.sum(0), "x", axis_index_groups=groups)[None],
        in_specs=P(),
        out_specs=P("x"),
        check_vma=False,
    )


# -------------------------------------------------------------------------------- gather, scatter

for _tiled, _axis in itertools.product((True, False), (0, 1, 2)):
    if _tiled and _axis == 2:
        continue
    for _axes in ("model", ("data", "model"), ("model", "data")):
        program.add(
            f"all_gather_{'tiled' if _tiled else 'untiled'}_{_axis}_over_{axes_label(_axes)}",
            "data=2,model=4",
            [f32(6, 12)],
            lambda w, tiled=_tiled, axis=_axis, axes=_axes: w.shard_map(
                lambda x: lax.all_gather(x, axes, axis=axis, tiled=tiled)[None],
                in_specs=P("data", "model"),
                out_specs=P(("data", "model")),
            ),
        )


@program("data=2,model=4", f32(6, 5))
def all_gather_of_replicated_value_repeats(w):
    return w.shard_map(
        lambda x: (
            lax.all_gather(x, "model", axis=1, tiled=True),
            lax.all_gather(x.sum(), "model"),
        ),
        in_specs=P("data"),
        out_specs=(P("data", "model"), P(("data", "model"))),
        check_vma=False,
    )


@program("x=8", f32(16, 3))
def all_gather_in_groups(w):
    groups = [[0, 3], [1, 2], [6, 4], [5, 7]]
    return w.shard_map(
        lambda x: (
            lax.all_gather(x, "x", axis_index_groups=groups),
            lax.all_gather(x, "x", axis_index_groups=groups, axis=1, tiled=True),
        ),
        in_specs=P("x"),
        out_specs=(P("x"), P("x")),
        check_vma=False,
    )


def _psum_scatter(axes, axis, tiled):
    def body(x):
        if not tiled:
            n_devices = lax.axis_size(axes)
            x = x.reshape((n_devices, -1) if axis == 0 else (-1, n_devices))
        shard = lax.psum_scatter(x, axes, scatter_dimension=axis, tiled=tiled)
        return shard.reshape(1, -1)

    return lambda w: w.shard_map(
        body, in_specs=P(None, None, ("data", "model")), out_specs=P(("data", "model"))
    )


for _tiled, _axis in itertools.product((True, False), (0, 1)):
    for _axes in ("model", ("data", "model"), ("model", "data")):
        program.add(
            f"psum_scatter_{'tiled' if _tiled else 'untiled'}_{_axis}_over_{axes_label(_axes)}",
            "data=2,model=4",
            [f32(8, 16, 8)],
            _psum_scatter(_axes, _axis, _tiled),
        )


@program("x=8", f32(8, 32, 3))
def psum_scatter_in_groups(w):
    groups = [[0, 3], [1, 2], [6, 4], [5, 7]]
    return w.shard_map(
        lambda x: (
            lax.psum_scatter(x, "x", axis_index_groups=groups, scatter_dimension=1, tiled=True),
            lax.psum_scatter(
                x.reshape(2, 16, 3), "x", axis_index_groups=groups, scatter_dimension=0
            ),
        ),
        in_specs=P("x"),
        out_specs=(P("x"), P("x")),
        check_vma=False,
    )


# ------------------------------------------------------------------------------------- all_to_all


def _all_to_all(axes, split, concat, tiled):
    def body(x):
        if not tiled:
            # Untiled, the split axis has exactly one slice for each device.
            n_devices = lax.axis_size(axes)
            x = jnp.moveaxis(x.reshape(n_devices, -1, *x.shape[1:]), 0, split)
        return lax.all_to_all(x, axes, split, concat, tiled=tiled)[None]

    return lambda w: w.shard_map(
        body, in_specs=P(None, None, ("data", "model")), out_specs=P(("data", "model"))
    )


for _split, _concat, _tiled in itertools.product((0, 1, 2), (0, 1, 2), (True, False)):
    program.add(
        f"all_to_all_{'tiled' if _tiled else 'untiled'}_split_{_split}_concat_{_concat}",
        "data=2,model=4",
        [f32(4, 12, 64)],
        _all_to_all("model", _split, _concat, _tiled),
        # Values alone for most of the square; the gradient is the all_to_all with the two swapped.
        grad=(_split, _concat) in ((0, 1), (1, 0), (2, 2)),
    )

for _axes in (("data", "model"), ("model", "data")):
    program.add(
        f"all_to_all_over_{axes_label(_axes)}",
        "data=2,model=4",
        [f32(8, 16, 64)],
        _all_to_all(_axes, 0, 1, True),
    )


@program("data=2,model=4", f32(8, 6))
def all_to_all_of_replicated_value(w):
    return w.shard_map(
        lambda x: lax.all_to_all(jnp.cos(x), "model", 0, 1, tiled=True),
        in_specs=P(None, "data"),
        out_specs=P("model", "data"),
        check_vma=False,
    )


@program("x=8", f32(16, 6, 5))
def all_to_all_in_groups(w):
    groups = [[0, 3], [1, 2], [6, 4], [5, 7]]
    return w.shard_map(
        lambda x: (
            lax.all_to_all(x, "x", 0, 1, axis_index_groups=groups, tiled=True),
            lax.all_to_all(x, "x", 1, 0, axis_index_groups=groups, tiled=True),
        ),
        in_specs=P("x"),
        out_specs=(P("x"), P("x")),
        check_vma=False,
    )


@program("x=8", f32(16, 6, 5), grad=False)  # JAX rejects its gradient: wrong shape
def all_to_all_untiled_in_groups(w):
    groups = [[0, 3], [1, 2], [6, 4], [5, 7]]
    return w.shard_map(
        lambda x: lax.all_to_all(x, "x", 0, 2, axis_index_groups=groups),
        in_specs=P("x"),
        out_specs=P(None, None, "x"),
        check_vma=False,
    )


@program("x=8", f32(16, 3))
def pswapaxes_swaps_a_local_dim_and_the_mesh_axis(w):
    return w.shard_map(
        lambda x: lax.pswapaxes(jnp.outer(jnp.arange(1.0, 9.0), x), "x", 0),
        in_specs=P("x"),
        out_specs=P("x"),
    )


# ------------------------------------------------------------------------------------ permutations

_PERMUTATIONS = {
    "forward": [(i, (i + 1) % 8) for i in range(8)],
    "backward_by_three": [(i, (i - 3) % 8) for i in range(8)],
    "pairs_swapped": [(i, i ^ 1) for i in range(8)],
    "shuffled": list(enumerate([3, 0, 6, 1, 7, 2, 5, 4])),
    "chain_with_an_open_end": [(i, i + 1) for i in range(7)],
    "one_message": [(5, 2)],
    "no_message": [],
}

for _name, _perm in _PERMUTATIONS.items():
    program.add(
        f"ppermute_{_name}",
        "x=8",
        [f32(16, 3)],
        lambda w, perm=_perm: w.shard_map(
            lambda x: lax.ppermute(x * x, "x", perm), in_specs=P("x"), out_specs=P("x")
        ),
    )


for _axes in (("data", "model"), ("model", "data")):
    program.add(
        f"ppermute_over_{axes_label(_axes)}",
        "data=2,model=4",
        [f32(6, 12)],
        lambda w, axes=_axes: w.shard_map(
            lambda x: lax.ppermute(x, axes, [(i, (i + 3) % 8) for i in range(7)]),
            in_specs=P("data", "model"),
            out_specs=P("data", "model"),
        ),
        # JAX 0.10 silently uses mesh order, JAX 0.12 raises.
        rejected="same order as the axis_names"
        if _axes == ("model", "data") and hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")
        else "",
    )


@program("data=2,model=4", f32(6, 12))
def ppermute_over_one_of_two_axes(w):
    return w.shard_map(
        lambda x: lax.ppermute(x, "data", [(0, 1), (1, 0)]) - lax.ppermute(x, "model", [(3, 0)]),
        in_specs=P("data", "model"),
        out_specs=P("data", "model"),
    )


@program("data=2,model=4", f32(6, 5))
def ppermute_of_replicated_value_gives_zeros_to_devices_without_source(w):
    return w.shard_map(
        lambda x: lax.ppermute(x, "model", [(0, 1), (1, 2)]),
        in_specs=P("data"),
        out_specs=P("data", "model"),
        check_vma=False,
    )


@program("x=8", f32(16, 3))
def pshuffle_receives_from_the_listed_device(w):
    return w.shard_map(
        lambda x: lax.pshuffle(x, "x", [3, 0, 6, 1, 7, 2, 5, 4]), in_specs=P("x"), out_specs=P("x")
    )


@program(
    "data=2,model=4",
    f32(6, 12),
    grad=False,
    rejected="MLIR translation rule for primitive 'pbroadcast' not found for platform cpu",
    reference=lambda x: np.tile(x.reshape(2, 3, 4, 3)[:, :, 2], (1, 1, 4)).reshape(6, 12),
)
def pbroadcast_copies_the_value_of_one_device(w):
    return w.shard_map(
        lambda x: lax.pbroadcast(x, ("model",), 2),
        in_specs=P("data", "model"),
        out_specs=P("data", "model"),
        check_vma=False,
    )


@program(
    "data=2,model=4",
    f32(6, 12),
    grad=False,
    rejected="MLIR translation rule for primitive 'pbroadcast' not found for platform cpu",
    reference=lambda x: np.tile(x[3:, 3:6], (2, 4)),
)
def pbroadcast_over_two_axes_numbers_devices_in_tuple_order(w):
    return w.shard_map(
        lambda x: lax.pbroadcast(x, ("data", "model"), 5),
        in_specs=P("data", "model"),
        out_specs=P("data", "model"),
        check_vma=False,
    )


# ------------------------------------------------------------------------- indices, sizes and casts


@program("data=2,model=4", f32(6, 12))
def axis_index_numbers_devices_in_tuple_order(w):
    def body(x):
        flat = lax.axis_index(("data", "model")), lax.axis_index(("model", "data"))
        numbers = [lax.axis_index("data"), lax.axis_index("model"), *flat]
        return x * (numbers[0] + 3 * numbers[1]), jnp.stack(numbers)[None]

    return w.shard_map(
        body, in_specs=P("data", "model"), out_specs=(P("data", "model"), P(("data", "model")))
    )


@program("data=2,model=4", f32(6, 12))
def axis_size_multiplies_over_a_tuple(w):
    return w.shard_map(
        lambda x: x * lax.axis_size("data") ** lax.axis_size(("data", "model")),
        in_specs=P("data", "model"),
        out_specs=P("data", "model"),
    )


@program("data=2,model=4", f32(6, 12), f32(5))
def pcast_to_varying_turns_a_gradient_into_a_sum(w):
    def body(x, b):
        b = lax.pcast(b, "model", to="varying")
        return x.sum() * b[None] * (1 + lax.axis_index("model"))

    return w.shard_map(body, in_specs=(P("data", "model"), P()), out_specs=P(("data", "model")))


@program("data=2,model=4", f32(6, 12))
def several_collectives_in_sequence(w):
    def body(x):
        x = lax.all_gather(x, "model", axis=1, tiled=True)
        x = lax.psum_scatter(x * x, "model", scatter_dimension=1, tiled=True)
        x = lax.ppermute(x, "data", [(0, 1), (1, 0)])
        return x - lax.pmean(x, "data")

    return w.shard_map(body, in_specs=P("data", "model"), out_specs=P("data", "model"))


@program("data=1,model=8", f32(6, 16))
def collectives_over_an_axis_of_one_device(w):
    def body(x):
        gathered = lax.all_gather(x, "data", axis=0), lax.all_gather(x, "data", axis=1, tiled=True)
        scattered = lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True)
        moved = lax.ppermute(x, "data", [(0, 0)]) + lax.all_to_all(x, "data", 0, 1, tiled=True)
        summed = lax.psum(x, "data") * (1 + lax.axis_index("data"))
        return *gathered, scattered, moved, summed

    return w.shard_map(
        body,
        in_specs=P("data", "model"),
        out_specs=(P("data", None, "model"), *[P("data", "model")] * 4),
    )


@program("data=1,model=8", f32(8, 16))
def collectives_over_a_tuple_with_an_axis_of_one_device(w):
    axes = ("data", "model")

    def body(x):
        gathered = lax.all_gather(x, axes, axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, axes, scatter_dimension=1, tiled=True)
        moved = lax.ppermute(x, axes, [(i, (i + 1) % 8) for i in range(8)])
        swapped = lax.all_to_all(x, axes, 0, 1, tiled=True)
        return gathered, scattered, moved, swapped, lax.axis_index(axes)[None]

    return w.shard_map(
        body,
        in_specs=P("data", "model"),
        out_specs=(P(("data", "model")), *[P("data", "model")] * 2, P("data", "model"), P(axes)),
    )


# ---------------------------------------------------------------------------------------- ragged

_RAGGED_ERROR = "ragged-all-to-all"
_SENT = np.array([[1, 2, 0, 1], [2, 0, 1, 1], [0, 1, 1, 2], [1, 1, 1, 1]])


def _ragged_numbers():
    """Return the source and destination offsets of chunks, by sender and receiver."""
    starts = np.cumsum(_SENT, 1) - _SENT
    landings = np.cumsum(_SENT, 0) - _SENT
    return starts, landings


def _ragged_reference(x, out):
    starts, landings = _ragged_numbers()
    x, out = x.reshape(4, 4, 3), out.reshape(4, 6, 3).copy()
    for sender, receiver in itertools.product(range(4), range(4)):
        n, start, landing = (a[sender, receiver] for a in (_SENT, starts, landings))
        out[receiver, landing : landing + n] = x[sender, start : start + n]
    return out.reshape(24, 3)


@program(
    "x=4",
    f32(16, 3),
    f32(24, 3),
    grad=False,
    rejected=_RAGGED_ERROR,
    reference=_ragged_reference,
)
def ragged_all_to_all_sends_chunks_of_any_size(w):
    starts, landings = (jnp.asarray(a, jnp.int32) for a in _ragged_numbers())
    sizes = jnp.asarray(_SENT, jnp.int32)

    def body(x, out):
        me = lax.axis_index("x")
        return lax.ragged_all_to_all(
            x, out, starts[me], sizes[me], landings[me], sizes[:, me], axis_name="x"
        )

    return w.shard_map(body, in_specs=P("x"), out_specs=P("x"), check_vma=False)
