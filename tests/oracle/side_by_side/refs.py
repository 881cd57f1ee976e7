"""`Ref`s (jax.new_ref): changed in place by eager code, jit, loops, gradients and shard_map."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import random as stateful
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def put(spec, values=None):
    """Return an array on the mesh."""
    values = jnp.arange(64.0).reshape(8, 8) if values is None else values
    return jax.device_put(values, NamedSharding(mesh_2x4(), spec))


def new_ref(spec=None, shape=(8, 8), dtype=np.float32):
    """Return a ref; without a spec on one device and not committed."""
    values = jnp.arange(np.prod(shape), dtype=dtype).reshape(shape)
    return jax.new_ref(values if spec is None else put(spec, values))


def state(*refs):
    """Return the value, sharding and type of each ref."""
    return [[ref[...], ref.sharding, ref.shape, str(ref.dtype)] for ref in refs]


@program
def eager_get_set_and_swap():
    ref = new_ref()
    ref[2] = jnp.ones(8)
    row = ref[3, 1:4]
    old = jax.ref.swap(ref, (0, 0), 7.0)
    ref.addupdate(1.0, (1, 1))
    return row, old, jax.ref.get(ref, (slice(None), 2)), state(ref), str(ref)


@program
def eager_on_a_sharded_ref():
    ref = new_ref(P("data", "model"))
    ref[2] = jnp.ones(8)
    ref[...] += 1.0
    return ref[1], ref[:, 3], state(ref)


@program
def argument_of_a_jit():
    @jax.jit
    def f(ref, x):
        ref[...] = ref[...] * 2 + x
        ref[0] = jnp.zeros(8)
        return ref[1]

    ref = new_ref(P("data"))
    return f(ref, 1.0), f(ref, 2.0), state(ref)


@program
def several_arguments_of_which_some_are_unused():
    @jax.jit
    def f(unused, first, x, also_unused, second):
        first[...] += x
        second[1] = first[2]
        return first[...].sum()

    refs = [new_ref(P("data")), new_ref(P("model")), new_ref(P("data")), new_ref(P("model"))]
    total = f(refs[0], refs[1], 3.0, refs[2], refs[3])
    return total, state(*refs)


@program
def closed_over_by_a_jit():
    first, second = new_ref(P("data", "model")), new_ref(P("data", "model"))

    @jax.jit
    def f(x):
        first[...] += x
        second[...] = jnp.sin(first[...])
        return second[0].sum()

    return f(1.0), f(2.0), state(first, second)


@program
def arguments_and_constants_together():
    constants = put(P("data", "model"))
    counter = jax.new_ref(put(P(), jnp.zeros((), jnp.int32)))

    @jax.jit
    def f(ref, x):
        counter[...] += 1
        ref[...] += constants * x
        return counter[...]

    ref = new_ref(P("data", "model"))
    return f(ref, 1.0), f(ref, 2.0), state(ref, counter)


@program
def made_inside_a_jit():
    @jax.jit
    def f(x):
        ref = jax.new_ref(x)
        ref[0] = x[1] + x[2]
        jax.ref.addupdate(ref, (slice(2, 4), 1), jnp.full(2, 10.0))
        return jax.ref.freeze(ref), x.sum()

    return f(put(P("data", "model")))


@program
def donated_arrays_beside_a_ref():
    @functools.partial(jax.jit, donate_argnums=0)
    def f(x, ref):
        ref[...] += x[0]
        return x * 2

    x, ref = put(P("data"), jnp.ones((4, 8))), new_ref(P("data"))
    return f(x, ref), x.is_deleted(), state(ref)


@program
def changed_in_a_scan():
    @jax.jit
    def f(ref, xs):
        def body(carry, x):
            ref[...] += x * carry
            return carry + 1, ref[0, 0]

        return jax.lax.scan(body, jnp.float32(1), xs)

    ref = new_ref(P("data"))
    return f(ref, jnp.arange(4.0)), state(ref)


@program
def scanned_over():
    @jax.jit
    def f(ref, xs):
        def body(carry, row):
            row_ref, x = row
            row_ref[...] = row_ref[...] + carry * x
            return carry + x, None

        return jax.lax.scan(body, jnp.float32(1), (ref, xs))[0]

    ref = new_ref(P(None, "model"))
    return f(ref, jnp.arange(8.0)), state(ref)


@program
def changed_in_loops_and_branches():
    @jax.jit
    def f(ref, n):
        def add_one(i, _):
            ref[i % 8] += 1.0
            return 0

        jax.lax.fori_loop(0, 5, add_one, 0)

        def set_zero():
            ref[0] = jnp.zeros(8)

        def set_two():
            ref[0] = jnp.full(8, 2.0)

        jax.lax.cond(n > 1, set_zero, set_two)
        return jax.lax.while_loop(lambda i: i < ref[1, 1], lambda i: i + 3.0, jnp.float32(0))

    ref = new_ref(P("data", "model"))
    return f(ref, 1), f(ref, 2), state(ref)


@program
def gradients_accumulate_in_a_ref():
    total = jax.new_ref(put(P("model"), jnp.zeros((8, 8))))

    @jax.jit
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        total[...] += gradient
        return loss

    w, x = put(P("model"), jnp.ones((8, 8)) / 8), put(P("data"))
    return step(w, x), step(w, x + 1), state(total)


@program
def gradient_through_a_ref_made_inside():
    def loss(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        for _ in range(3):
            ref[...] = ref[...] * 2 + jnp.sin(x)
        return ref[...].sum()

    return jax.jit(jax.value_and_grad(loss))(put(P("data")))


@program
def eager_gradient_through_a_ref():
    def loss(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = ref[...] * 2 + jnp.sin(x)
        return ref[...].sum()

    return jax.grad(loss)(jnp.arange(8.0)), jax.grad(loss)(put(P("data")))


@program
def gradient_with_a_ref_as_argument():
    # The ref only records; the derivative is that of the rest.
    @jax.jit
    def f(x, record):
        def loss(x):
            y = jnp.sin(x).sum()
            record[...] = jax.lax.stop_gradient(y)
            return y**2

        return jax.grad(loss)(x)

    record = jax.new_ref(put(P(), jnp.zeros(())))
    return f(put(P("data")), record), state(record)


@program
def ref_on_one_device_beside_a_sharded_array():
    ref = new_ref()
    return jax.jit(lambda ref, x: ref[...] + x)(ref, put(P("data")))


@program
def gradients_in_a_ref_through_a_shard_map():
    def loss(w, x):
        body = jax.shard_map(
            lambda w, x: jax.lax.psum(((x @ w) ** 2).sum(), ("data", "model")),
            mesh=mesh_2x4(),
            in_specs=(P(None, "model"), P("data")),
            out_specs=P(),
        )
        return body(w, x)

    ref = jax.new_ref(put(P(None, "model"), jnp.ones((8, 8)) / 8))

    @jax.jit
    def step(x):
        value, gradient = jax.value_and_grad(loss)(ref[...], x)
        ref[...] -= 1e-3 * gradient
        return value

    x = put(P("data"), jnp.arange(64.0).reshape(8, 8) / 64)
    return step(x), step(x), state(ref)


def over_mesh(body, in_specs, out_specs, **kwargs):
    return jax.shard_map(body, mesh=mesh_2x4(), in_specs=in_specs, out_specs=out_specs, **kwargs)


@program
def argument_of_a_shard_map_in_a_jit():
    def body(ref, x):
        ref[...] += jax.lax.axis_index("data") * 10.0 + x
        return ref[0].sum()[None, None]

    ref = new_ref(P("data", "model"))
    f = over_mesh(body, (P("data", "model"), P()), P("data", "model"))
    return jax.jit(f)(ref, 1.0), state(ref)


@program
def argument_of_an_eager_shard_map():
    def body(ref, x):
        ref[...] += jax.lax.axis_index("data") * 10.0 + x
        return ref[0].sum()[None, None]

    ref = new_ref(P("data", "model"))
    return over_mesh(body, (P("data", "model"), P()), P("data", "model"))(ref, 1.0)


@program
def made_inside_a_shard_map():
    def body(x):
        ref = jax.new_ref(jnp.zeros_like(x))

        def accumulate(i, _):
            ref[...] += jax.lax.ppermute(
                ref[...] + x, "model", [(j, (j + 1) % 4) for j in range(4)]
            )
            return 0

        jax.lax.fori_loop(0, 3, accumulate, 0)
        return ref[...], jax.lax.psum(jax.ref.freeze(ref).sum(), ("data", "model"))

    f = over_mesh(body, P("data", "model"), (P("data", "model"), P()))
    x = put(P("data", "model"))
    return jax.jit(f)(x)


@program
def made_inside_an_eager_shard_map():
    def body(x):
        ref = jax.new_ref(x)
        ref[0] = ref[1] * 2
        return ref[...]

    return over_mesh(body, P("data", "model"), P("data", "model"))(put(P("data", "model")))


@program
def closed_over_by_a_shard_map():
    ref = new_ref(P())

    def body(x):
        return x + ref[0, 0]

    return jax.jit(over_mesh(body, P("data", "model"), P("data", "model")))(put(P("data", "model")))


@program
def replicated_ref_in_a_shard_map():
    def body(ref, x):
        ref[...] += jax.lax.psum(x, ("data", "model"))
        return x * ref[0, 0]

    ref = new_ref(P(), (4, 2))
    f = jax.jit(over_mesh(body, (P(), P("data", "model")), P("data", "model")))
    x = put(P("data", "model"))
    return f(ref, x), state(ref)


@program
def mapped_by_vmap():
    def f(ref, x):
        ref[...] = ref[...] * x
        return ref[0]

    ref = new_ref(P("data"))
    return jax.jit(jax.vmap(f))(ref, jnp.arange(8.0)), state(ref)


@program
def narrow_ref_takes_weakly_typed_values():
    ref = new_ref(P("data"), dtype=jnp.bfloat16)
    ref[0] = jnp.full(8, 2.5)  # a Python number: its type is weak
    ref[1, 1] = 3.25
    ref[2, 2] = jnp.sin(2.0)
    ref[3, 3] = jax.jit(lambda x: x * 2)(1.5)
    ref[4, 4] = jnp.sqrt(2.0) + 1
    return state(ref)


@program
def narrow_ref_in_a_jit():
    @jax.jit
    def f(ref, rate):
        ref[1, 1] = rate
        ref[2, 2] = jnp.maximum(rate, 0.5) * 2
        jax.ref.swap(ref, (3, 3), jnp.tanh(rate))
        return ref[...]

    ref = new_ref(P("data"), dtype=jnp.bfloat16)
    return f(ref, 0.25), state(ref)


@program
def wrong_dtype_of_a_value():
    ref = new_ref(P("data"), dtype=jnp.bfloat16)
    ref[...] = jnp.ones((8, 8), jnp.float32)


@program
def integer_refs_convert_integers():
    ref = new_ref(P("data"), dtype=jnp.int32)
    ref[0] = jnp.arange(8, dtype=jnp.int8)
    ref[1, 1] = 300
    return state(ref)


@program
def returned_from_a_jit():
    return jax.jit(lambda x: jax.new_ref(x))(jnp.ones(8))


@program
def passed_twice():
    def f(first, second):
        first[...] += second[...]

    ref = new_ref()
    jax.jit(f)(ref, ref)


@program
def random_keys_in_a_ref():
    ref = jax.new_ref(jax.random.key(1))

    @jax.jit
    def draw():
        key, ref[...] = jax.random.split(ref[...])
        return jax.random.uniform(key, (4,))

    return draw(), draw(), jax.random.key_data(ref[...])


@program
def stateful_random_numbers():
    rng = stateful.stateful_rng(3)
    first = rng.uniform(size=(4,))
    second = jax.jit(lambda: rng.normal(size=(2, 2)))()
    third = jax.jit(lambda rng, x: x + rng.integers(0, 100, size=(8, 8)))(rng, jnp.ones((8, 8)))
    children = rng.spawn(2)
    return first, second, third, [c.uniform() for c in children], rng.key()


@program
def stateful_random_numbers_mapped():
    rng = stateful.stateful_rng(3)
    return jax.vmap(lambda r, x: x + r.uniform())(rng.split(4), jnp.arange(4.0)), rng.uniform()


@program
def optimizer_with_refs():
    mesh = mesh_2x4()
    optimizer = optax.adam(1e-2)
    specs = {"w": P(None, "model"), "b": P("model")}
    values = {"w": jnp.ones((8, 8)) / 4, "b": jnp.zeros(8)}
    parameters = {k: put(specs[k], values[k]) for k in specs}
    parameter_refs = jax.tree.map(jax.new_ref, parameters)
    states = jax.tree.map(lambda x: x if x.ndim else put(P(), x), optimizer.init(parameters))
    state_refs = jax.tree.map(jax.new_ref, states)

    @jax.jit
    def step(parameter_refs, state_refs, x, y):
        parameters = jax.tree.map(lambda ref: ref[...], parameter_refs)
        states = jax.tree.map(lambda ref: ref[...], state_refs)

        def loss(p):
            return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, states = optimizer.update(gradients, states)
        parameters = optax.apply_updates(parameters, updates)
        for refs, new in ((parameter_refs, parameters), (state_refs, states)):
            for ref, array in zip(jax.tree.leaves(refs), jax.tree.leaves(new), strict=True):
                ref[...] = array
        return value

    x = jax.device_put(jnp.arange(64.0).reshape(8, 8) / 64, NamedSharding(mesh, P("data")))
    losses = [step(parameter_refs, state_refs, x, x * 2) for _ in range(3)]
    return losses, state(*jax.tree.leaves(parameter_refs))


def linear_model():
    """Return an NNX layer on the mesh."""
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    model.kernel.set_value(put(P(None, "model"), model.kernel[...]))
    model.bias.set_value(put(P("model"), model.bias[...]))
    return model


@program
def nnx_model_with_refs():
    model = nnx.with_vars(linear_model(), ref=True)

    @jax.jit
    def step(model, x):
        graph, parameters = nnx.split(model)

        def loss(parameters):
            return jnp.mean(nnx.merge(graph, parameters)(x) ** 2)

        value, gradients = jax.value_and_grad(loss)(nnx.with_vars(parameters, ref=False))
        for name in ("kernel", "bias"):
            model_value = getattr(model, name)
            model_value[...] -= 0.1 * gradients[name][...]
        return value

    x = put(P("data")) / 64
    return step(model, x), step(model, x), model.kernel[...], model.bias[...]


@program
def nnx_model_with_hijax_variables():
    model = nnx.with_vars(linear_model(), hijax=True)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @jax.jit
    def step(model, optimizer, x):
        graph, parameters = nnx.split(model)

        def loss(parameters):
            return jnp.mean(nnx.merge(graph, parameters)(x) ** 2)

        value, gradients = jax.value_and_grad(loss)(nnx.with_vars(parameters, mutable=False))
        optimizer.update(model, gradients)
        return value

    x = put(P("data")) / 64
    return step(model, optimizer, x), step(model, optimizer, x), model.kernel[...]
