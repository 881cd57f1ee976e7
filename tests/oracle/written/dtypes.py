"""Every dtype that JAX has on a CPU, random keys among them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from program import Input, ProgramTable, f32

program = ProgramTable()

BOTH = P("data", "model")
_FLOATS = "bfloat16 float16 float32 float64"
_NARROW = (
    "float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e3m4 "
    "float8_e4m3 float8_e8m0fnu float4_e2m1fn"
)
_INTS = "int4 uint4 int8 uint8 int16 uint16 int32 uint32 int64 uint64"
_COMPLEX = "complex64 complex128"
_WIDE = "float64 int64 uint64 complex128"


# Every collective that a dtype supports, in one program: compiling takes the time.


def _move_values(x):
    moved = lax.ppermute(x, "model", [(0, 1), (1, 3), (3, 0)])
    gathered = lax.all_gather(x, "model", axis=1, tiled=True)
    swapped = lax.all_to_all(x, "data", 0, 1, tiled=True)
    return moved, gathered, swapped, x.T.reshape(1, -1)


def _sum_values(x):
    total = lax.psum(x, "model")
    scattered = lax.psum_scatter(x, "data", scatter_dimension=0, tiled=True)
    # The second psum adds replicated values.
    return total, lax.psum(total, "model"), scattered, x.sum(1, dtype=x.dtype)


def _extremes(x):
    return lax.pmax(x, "model"), lax.pmin(x, ("data", "model"))


MOVED = _move_values, (BOTH, BOTH, BOTH, P(("data", "model")))
SUMMED = _sum_values, (P("data"), P("data"), BOTH, P(("data", "model")))
EXTREMES = _extremes, (P("data"), P())


def _add_programs(dtypes, *parts):
    def build(w):
        return w.shard_map(
            lambda x: tuple(fun(x) for fun, _ in parts),
            in_specs=BOTH,
            out_specs=tuple(specs for _, specs in parts),
        )

    for dtype in dtypes.split():
        program.add(
            f"collectives_of_{dtype}",
            "data=2,model=4",
            [Input((4, 12), dtype)],
            build,
            x64=dtype in _WIDE,
            grad=False,
        )


_add_programs("bool", MOVED, EXTREMES)
_add_programs(_NARROW, MOVED)
_add_programs(_COMPLEX, MOVED, SUMMED)
_add_programs(f"{_INTS} {_FLOATS}", MOVED, SUMMED, EXTREMES)


def _product(w):
    def body(x, y):
        return lax.psum(x @ y, "model"), jnp.tanh(x) @ y

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=(P("data"), BOTH))


for _dtype in f"{_FLOATS} {_COMPLEX} int8 int32".split():
    program.add(
        f"product_of_{_dtype}",
        "data=2,model=4",
        [Input((4, 12), _dtype), Input((12, 5), _dtype)],
        _product
        if not _dtype.startswith("int")
        else lambda w: w.shard_map(
            lambda x, y: lax.psum(x @ y, "model"), in_specs=(BOTH, P("model")), out_specs=P("data")
        ),
        x64=_dtype in _WIDE,
        grad=not _dtype.startswith("int"),
    )


@program("data=2,model=4", Input((4, 12), "bfloat16"), Input((12, 5), "bfloat16"))
def product_of_bfloat16_summed_in_float32(w):
    def body(x, y):
        product = jnp.matmul(x, y, preferred_element_type=jnp.float32)
        return lax.psum(product, "model").astype(jnp.bfloat16)

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=P("data"))


@program("data=2,model=4", Input((4, 12), "int32"), grad=False)
def psum_of_bool_counts(w):
    return w.shard_map(
        lambda x: lax.psum((x > 0).astype(jnp.int32), "model") + lax.psum(x > 5, "model"),
        in_specs=BOTH,
        out_specs=P("data"),
    )


# ------------------------------------------------------------------------------------ random keys


def _draws(impl):
    """Random keys created, folded, split and drawn from inside a body."""

    def body(x):
        key = jax.random.key(17, impl=impl)
        mine = jax.random.fold_in(key, lax.axis_index(("data", "model")))
        first, second = jax.random.split(mine)
        same = jax.random.uniform(key, x.shape)
        return x * jax.random.uniform(first, x.shape) + same, jax.random.bits(second, (1, 3))

    return lambda w: w.shard_map(body, in_specs=BOTH, out_specs=(BOTH, P(("data", "model"))))


def _moved_keys(impl):
    """Random keys sharded by a spec, gathered, permuted, selected and rerotated."""

    def body(keys):
        rotated = lax.ppermute(keys, "x", [(i, (i + 1) % 8) for i in range(8)])
        gathered = lax.all_gather(keys, "x", tiled=True)
        drawn = jax.vmap(lambda key: jax.random.bits(key, (3,)))(gathered[:5])
        selected = jnp.where(lax.axis_index("x") % 2 == 0, keys, rotated)
        return rotated, selected.reshape(1, 2), drawn[None]

    def build(w):
        mapped = w.shard_map(body, in_specs=P("x"), out_specs=(P("x"), P("x"), P("x")))
        return lambda: mapped(jax.random.split(jax.random.key(5, impl=impl), 16))

    return build


for _impl in ("threefry2x32", "rbg", "unsafe_rbg"):
    program.add(f"draws_from_{_impl}", "data=2,model=4", [f32(4, 12)], _draws(_impl), grad=False)
    program.add(f"moved_keys_of_{_impl}", "x=8", [], _moved_keys(_impl), grad=False)


@program("data=2,model=4", f32(4, 12), grad=False)
def dropout_with_old_style_keys(w):
    def body(x):
        key = jax.random.fold_in(jax.random.PRNGKey(3), lax.axis_index("model"))
        is_kept = jax.random.bernoulli(key, 0.7, x.shape)
        return jnp.where(is_kept, x / 0.7, 0.0)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(4, 12), grad=False)
def draws_of_several_kinds(w):
    def body(x):
        key = jax.random.fold_in(jax.random.key(3), lax.axis_index("data"))
        category = jax.random.categorical(key, x, axis=1)
        return jax.random.permutation(key, x, axis=1), category[:, None]

    return w.shard_map(body, in_specs=BOTH, out_specs=(BOTH, BOTH))
