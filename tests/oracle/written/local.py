"""Local operations: indexing, sorting, convolutions, linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from program import Input, ProgramTable, f32, i32

program = ProgramTable()

BOTH = P("data", "model")
ALL = P(("data", "model"))


def add_body(mesh, *inputs, in_specs, out_specs=BOTH, check_vma=True, **options):
    """Decorate the body of a program that is one shard_map."""

    def decorate(body):
        def build(w):
            return w.shard_map(body, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)

        program.add(body.__name__, mesh, inputs, build, **options)
        return body

    return decorate


MESH = "data=2,model=4"


@add_body(MESH, f32(6, 12), in_specs=BOTH)
def slices_and_pads(x):
    front = lax.dynamic_slice(x, (lax.axis_index("data"), 0), (2, 3))
    x = lax.dynamic_update_slice(x, front * 2, (0, lax.axis_index("model") % 2))
    x = jnp.pad(x, ((1, 0), (0, 2)), constant_values=1.5)[1:, ::2]
    return jnp.concatenate([x, -x[:, ::-1]], 1)[:, :3]


@add_body(MESH, f32(6, 12), i32(6, 12), in_specs=(BOTH, BOTH))
def gathers_with_indices_that_differ(x, index):
    rows = x[jnp.abs(index[:, 0]) % 3]
    picked = jnp.take_along_axis(rows, jnp.abs(index) % 3, axis=1)
    return picked + x[jnp.array([2, 0, 1])] + jnp.take(x, 1, axis=0)


@add_body(MESH, f32(6, 12), i32(6, 12), in_specs=(BOTH, BOTH))
def scatters_with_indices_that_differ(x, index):
    rows = jnp.abs(index[:, 0]) % 3
    added = jnp.zeros((3, 3)).at[rows].add(x)
    return added.at[rows, jnp.abs(index[:, 1]) % 3].mul(2.0) + x.at[0].set(1.0) + x.at[1].max(0.1)


@add_body(MESH, f32(6, 12), in_specs=P("data"), out_specs=P("data", "model"))
def gathers_from_a_replicated_table_with_an_index_that_differs(x):
    return lax.dynamic_slice_in_dim(x, lax.axis_index("model") * 3, 3, 1) * 2


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH, BOTH, ALL, BOTH))
def sorts(x):
    order = jnp.argsort(x, axis=0)
    keys, values = lax.sort((x, jnp.arange(9.0).reshape(3, 3)), dimension=1, num_keys=1)
    return jnp.sort(x, axis=1), keys * values, lax.top_k(x, 2)[0], order


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH,) * 5)
def cumulative(x):
    return (
        jnp.cumsum(x, 0),
        jnp.cumprod(x, 1),
        lax.cummax(x, 1),
        lax.cumlogsumexp(x, 0, reverse=True),
        jnp.cumsum(x[:, ::-1], 1),
    )


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(ALL, ALL, ALL, ALL, ALL))
def reductions_of_local_dims(x):
    flat = x.reshape(-1)
    numbers = flat.argmax(), flat.argmin(), (x > 0).any(), (x > -9).all()
    extremes = x.max(0), x.min(1), x.prod(0)
    return flat.sum()[None], jnp.stack(numbers)[None], *(e[None] for e in extremes)


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(ALL, BOTH, BOTH))
def reshapes_and_transposes(x):
    odd = x.reshape(3, 1, 3, 1).transpose(3, 2, 0, 1).reshape(1, 9)
    broad = jnp.broadcast_to(x[:, None, :], (3, 2, 3)).swapaxes(0, 1).reshape(3, 6)[:, ::2]
    return odd, broad, jnp.tile(jnp.repeat(x, 2, 1)[:, None, 1:4], (1, 1, 1))[:, 0]


@add_body(MESH, f32(4, 8, 9), f32(4, 8, 3), in_specs=(P("data"), P("model")), out_specs=BOTH)
def convolution_with_a_sharded_kernel(x, kernel):
    return lax.conv_general_dilated(x, kernel, (2,), "SAME", rhs_dilation=(2,))


@add_body(MESH, f32(4, 8, 9, 5), f32(8, 1, 3, 2), in_specs=(BOTH, P("model")), out_specs=BOTH)
def depthwise_convolution(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 2), "VALID", feature_group_count=2)


@add_body(MESH, f32(4, 8, 9), in_specs=P("data", "model"), out_specs=BOTH)
def pooling(x):
    return (
        lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3), (1, 1, 2), "VALID")
        + (lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 1, 2), "SAME")[:, :, :4])
    )


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH, BOTH))
def fourier(x):
    spectrum = jnp.fft.fft(x, axis=1)
    return spectrum, jnp.fft.irfft(jnp.fft.rfft(x, axis=0), n=3, axis=0)


def _positive(x):
    return x @ x.T + 3.0 * jnp.eye(x.shape[0])


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=BOTH)
def cholesky_and_a_triangular_solve(x):
    matrix = _positive(x)
    factor = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.solve_triangular(factor, x, lower=True)


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=BOTH, grad=False)
def solves(x):
    return jnp.linalg.solve(_positive(x), x)


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(ALL, ALL))
def eigenvalues_and_determinants(x):
    values = jnp.linalg.eigvalsh(_positive(x))
    return values, jnp.linalg.slogdet(_positive(x) + x)[1][None]


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH, ALL), grad=False)
def qr_and_singular_values(x):
    _, r = jnp.linalg.qr(x)
    return jnp.abs(r), jnp.linalg.svd(x, compute_uv=False)


@add_body(MESH, f32(6, 12), f32(2, 12, 5), in_specs=(BOTH, P("data", "model")), out_specs=ALL)
def einsums(x, y):
    product = jnp.einsum("ij,bjk->kib", x, y)
    squares = jnp.einsum("ij,ij->i", x, x)
    return product.sum(2).T * squares[:, None] + jnp.vdot(x, x)


@add_body(
    MESH,
    f32(2, 3, 12),
    f32(2, 12, 5),
    in_specs=(P("data", None, "model"), P("data", "model")),
    out_specs=P("data"),
)
def batched_product_summed(x, y):
    return lax.psum(jnp.einsum("bij,bjk->bik", x, y), "model")


@add_body(
    MESH, f32(8, 6), f32(2, 6, 5), i32(4), in_specs=(P("data"), P(), P("model")), out_specs=ALL
)
def ragged_dot_with_sizes_that_differ(x, y, n):
    first = jnp.abs(n[0]) % 5
    sizes = jnp.stack([first, 4 - first]).astype(jnp.int32)
    return lax.ragged_dot(x, y, sizes)


# With check_vma JAX 0.12 rejects the derivative of erf.
@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH,) * 3, check_vma=False)
def special_functions(x):
    smooth = jax.nn.gelu(x) + jax.nn.softmax(x, axis=1) * jax.scipy.special.erf(x)
    rounded = jnp.round(x * 3).astype(jnp.int32)
    return smooth, jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.nan), (rounded << 2) ^ 5


@add_body(MESH, f32(6, 12), in_specs=BOTH)
def one_hot_and_clip(x):
    hot = jax.nn.one_hot(jnp.argmax(x, 1), 3)
    return jnp.clip(x, -0.5, lax.pmax(lax.stop_gradient(x.max()), "model")) * hot


@add_body(MESH, Input((6, 12), "uint32"), in_specs=BOTH, grad=False)
def bits(x):
    return lax.bitcast_convert_type(lax.population_count(x) + (x >> 3), jnp.float32).view("uint32")


@add_body(MESH, f32(6, 12), in_specs=BOTH, out_specs=(BOTH, BOTH))
def barrier_and_name(x):
    from jax.ad_checkpoint import checkpoint_name

    a, b = lax.optimization_barrier((x * 2, lax.psum(x, "model")))
    return checkpoint_name(a, "a"), a + b


@add_body(MESH, f32(6, 12), in_specs=BOTH)
def newton_in_a_loop(x):
    def newton(v):
        def step(state):
            i, y = state
            return i + 1, 0.5 * (y + v / y)

        return lax.fori_loop(0, 6, lambda i, y: step((i, y))[1], jnp.ones_like(v))

    return newton(jnp.abs(x) + 1.0)
