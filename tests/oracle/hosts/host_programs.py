"""Programs for several hosts: each returns what one host would print, as plain data.

Run by `run_host_programs.py` on real processes and on virtual hosts. None returns device ids: JAX
numbers the CPU devices of several processes with gaps, those of GPUs and TPUs without.
"""

from __future__ import annotations

import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

N_HOSTS, N_LOCAL = 4, 2

PROGRAMS = {}
# Where the hosts of one run share files.
FOLDER = Path()


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def host_mesh():
    return jax.make_mesh((N_HOSTS, N_LOCAL), ("host", "local"), axis_types=(AxisType.Auto,) * 2)


def data_mesh():
    return jax.make_mesh((N_HOSTS * N_LOCAL,), ("data",), axis_types=(AxisType.Auto,))


def shards(array):
    """The shards of this host: where they are in the array, which replica, and their values."""
    return [
        [[list(part.indices(size)[:2]) for part, size in zip(s.index, array.shape, strict=True)],
         s.replica_id, np.asarray(s.data)]
        for s in array.addressable_shards
    ]  # fmt: skip


def error_of(call):
    """The type and the beginning of the message of what a call raises."""
    try:
        result = call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:70]}"
    return f"no error: {result}"


def full_array(shape=(8, 4)):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def sharded(spec, shape=(8, 4), mesh=None):
    values = full_array(shape)
    sharding = NamedSharding(mesh or host_mesh(), spec)
    return jax.make_array_from_callback(shape, sharding, lambda index: values[index])


@program
def the_world():
    owners = [device.process_index for device in jax.devices()]
    local = [device.process_index for device in jax.local_devices()]
    counts = [jax.process_count(), jax.device_count(), jax.local_device_count()]
    of_host_2 = len(jax.local_devices(process_index=2))
    unknown = error_of(lambda: jax.local_devices(process_index=7))
    return [jax.process_index(), jax.process_indices(), counts, owners, local, of_host_2, unknown]


@program
def data_of_each_host():
    rows = full_array((2, 4)) + 100 * jax.process_index()
    sharding = NamedSharding(host_mesh(), P(("host", "local")))
    batch = jax.make_array_from_process_local_data(sharding, rows)
    return [batch.shape, batch.is_fully_addressable, batch.is_fully_replicated, shards(batch)]


@program
def data_of_each_host_with_a_global_shape():
    mesh = host_mesh()
    columns = full_array((3, 8))
    by_column = NamedSharding(mesh, P(None, ("host", "local")))
    full = jax.make_array_from_process_local_data(by_column, columns, (3, 8))
    part = jax.make_array_from_process_local_data(by_column, columns[:, :2], (3, 8))
    wrong = error_of(
        lambda: jax.make_array_from_process_local_data(by_column, columns[:, :3], (3, 8))
    )
    return [shards(full), shards(part), wrong]


@program
def callback_is_called_for_local_shards():
    calls = []
    values = full_array((8, 4))

    def read(index):
        calls.append([part.indices(size)[:2] for part, size in zip(index, (8, 4), strict=True)])
        return values[index]

    array = jax.make_array_from_callback((8, 4), NamedSharding(host_mesh(), P("host")), read)
    return [calls, shards(array)]


@program
def array_of_single_device_arrays():
    mesh = data_mesh()
    parts = [
        jax.device_put(np.full((1, 3), 10 * jax.process_index() + i), device)
        for i, device in enumerate(jax.local_devices())
    ]
    sharding = NamedSharding(mesh, P("data"))
    array = jax.make_array_from_single_device_arrays((8, 3), sharding, parts)
    missing = error_of(
        lambda: jax.make_array_from_single_device_arrays((8, 3), sharding, parts[:1])
    )
    total = jax.jit(jnp.sum)(array)
    return [shards(array), missing, total.is_fully_addressable, int(total)]


@program
def fetching_what_is_not_here_raises():
    array = sharded(P("host"))
    calls = (
        lambda: np.asarray(array),
        lambda: float(array.sum(axis=1)[0]) and jax.device_get(array),
        lambda: array.tolist(),
        lambda: array.__array__(),
        lambda: np.mean(array),
        lambda: jax.jit(lambda x: x + array)(1.0),
    )
    return [repr(array), str(array), [error_of(call) for call in calls]]


@program
def replicated_results_are_fetched():
    array = sharded(P("host", "local"), (8, 4))
    replicated = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(host_mesh(), P()))(array)
    per_host = jax.make_array_from_process_local_data(
        NamedSharding(host_mesh(), P(None, "local")), full_array((3, 2))
    )
    return [
        np.asarray(replicated), str(replicated[0, 1]), repr(replicated), replicated.tolist()[1],
        per_host.is_fully_addressable, np.asarray(per_host),
    ]  # fmt: skip


@program
def reductions_over_all_hosts():
    rows = full_array((2, 4)) * (1 + jax.process_index())
    sharding = NamedSharding(host_mesh(), P(("host", "local")))
    batch = jax.make_array_from_process_local_data(sharding, rows)
    largest = jnp.max(batch, axis=0)
    return [float(jnp.sum(batch)), float(batch.mean()), np.asarray(largest), int(jnp.argmax(batch))]


@program
def gather_values_of_each_process():
    me = jax.process_index()
    tree = {"loss": np.float32(0.5 * me), "counts": np.array([me, me * me])}
    return [
        multihost_utils.process_allgather(tree),
        multihost_utils.process_allgather(tree, tiled=True),
        multihost_utils.process_allgather(jnp.arange(2) + me),
    ]


@program
def gather_a_global_array():
    array = sharded(P("local", "host"))
    error = error_of(lambda: multihost_utils.process_allgather(array))
    return [multihost_utils.process_allgather(array, tiled=True), error]


@program
def broadcast_from_one_host():
    me = jax.process_index()
    tree = {"seed": np.int32(7 + me), "order": np.arange(4) * (me + 1)}
    return [
        multihost_utils.broadcast_one_to_all(tree),
        multihost_utils.broadcast_one_to_all(tree, is_source=me == 2),
    ]


@program
def host_0_writes_a_file_for_all():
    file = FOLDER / "config.txt"
    if jax.process_index() == 0:
        file.write_text("lr=0.1")
    multihost_utils.sync_global_devices("config is written")
    text = file.read_text()
    multihost_utils.sync_global_devices("config is read")
    return text


@program
def equality_of_hosts_is_asserted():
    same = error_of(lambda: multihost_utils.assert_equal(np.arange(3), "same"))
    differs = error_of(lambda: multihost_utils.assert_equal(jax.process_index(), "rank"))
    names = error_of(lambda: multihost_utils.sync_global_devices(f"step {jax.process_index()}"))
    return [same, differs, names]


@program
def local_arrays_to_global_and_back():
    mesh, me = host_mesh(), jax.process_index()
    local = full_array((2, 4)) + 10 * me
    batch = multihost_utils.host_local_array_to_global_array(local, mesh, P("host", "local"))
    weights = multihost_utils.host_local_array_to_global_array(full_array((3,)), mesh, P())
    step = jax.jit(lambda x, w: (x * 2 + w[1], w.sum()))
    doubled, total = step(batch, weights)
    back, total = multihost_utils.global_array_to_host_local_array(
        (doubled, total), mesh, (P("host", "local"), P())
    )
    return [batch.shape, back.is_fully_addressable, np.asarray(back), float(total)]


@program
def hosts_with_unequal_amounts_of_data():
    me = jax.process_index()
    examples = full_array((me + 1, 3)) + me
    counts = multihost_utils.process_allgather(np.int32(len(examples)))
    rows = int(counts.max()) * 2
    padded = np.zeros((rows, 3), np.float32)
    padded[: len(examples)] = examples
    mask = np.arange(rows) < len(examples)
    sharding = NamedSharding(host_mesh(), P("host"))
    batch = jax.make_array_from_process_local_data(sharding, padded)
    valid = jax.make_array_from_process_local_data(sharding, mask)
    mean = jax.jit(lambda x, m: jnp.sum(x * m[:, None]) / m.sum())(batch, valid)
    return [counts, batch.shape, float(mean)]


@program
def random_numbers_of_each_host():
    me = jax.process_index()
    own = jax.random.normal(jax.random.fold_in(jax.random.key(0), me), (3,))
    numpy_own = np.random.default_rng(me).integers(1000, size=4)
    np.random.seed(me)
    shuffled = np.random.permutation(6)
    shared = jax.random.uniform(jax.random.key(1), (2,))
    return [np.asarray(own), numpy_own, shuffled, np.asarray(shared)]


@program
def random_numbers_over_all_hosts():
    sharding = NamedSharding(host_mesh(), P("host", "local"))
    draw = jax.jit(lambda key: jax.random.normal(key, (4, 4)), out_shardings=sharding)
    keys = jax.jit(
        lambda key: jax.random.split(key, 8), out_shardings=NamedSharding(data_mesh(), P("data"))
    )
    local_keys = [jax.random.key_data(s.data) for s in keys(jax.random.key(5)).addressable_shards]
    return [shards(draw(jax.random.key(3))), local_keys]


@program
def only_host_0_logs():
    records = []
    logger = logging.getLogger("train")
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if jax.process_index() == 0 else logging.WARNING)
    loss = jnp.mean(sharded(P("host")))
    logger.info("loss %.3f", loss)
    logger.warning("host %d ends", jax.process_index())
    return records


def regression_batches(n_steps, rows):
    me = jax.process_index()
    generator = np.random.default_rng(me)
    for _ in range(n_steps):
        x = generator.normal(size=(rows, 4)).astype(np.float32)
        yield x, x @ np.array([1.0, -2.0, 0.5, 3.0], np.float32)


def squared_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


@program
def data_parallel_training():
    mesh = data_mesh()
    by_row, replicated = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    w = jax.device_put(np.zeros(4, np.float32), replicated)

    @jax.jit
    def step(w, x, y):
        loss, gradient = jax.value_and_grad(squared_error)(w, x, y)
        return w - 0.1 * gradient, loss

    losses = []
    for x, y in regression_batches(4, 4):
        batch = [jax.make_array_from_process_local_data(by_row, part) for part in (x, y)]
        w, loss = step(w, *batch)
        losses.append(float(loss))
    return [losses, np.asarray(w)]


@program
def fully_sharded_training():
    mesh = data_mesh()
    by_row = NamedSharding(mesh, P("data"))
    params = {"w1": sharded(P("data"), (8, 6), mesh), "w2": sharded(P(None, "data"), (6, 8), mesh)}
    params = jax.jit(lambda p: jax.tree.map(lambda w: w / 50, p))(params)
    shardings = jax.tree.map(lambda w: w.sharding, params)

    def loss_of(params, x):
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - x) ** 2)

    @jax.jit
    def step(params, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda w, g: w - 0.5 * g, params, gradients), loss

    step = jax.jit(step, out_shardings=(shardings, None), donate_argnums=0)
    losses = []
    for number in range(3):
        x = np.random.default_rng(10 * jax.process_index() + number).normal(size=(2, 8))
        batch = jax.make_array_from_process_local_data(by_row, x.astype(np.float32))
        params, loss = step(params, batch)
        losses.append(float(loss))
    return [losses, shards(params["w1"]), shards(params["w2"])]


@program
def collectives_over_all_hosts():
    mesh = data_mesh()
    x = sharded(P("data"), (16, 8), mesh)

    def body(x):
        index = jax.lax.axis_index("data")
        gathered = jax.lax.all_gather(x[0], "data")
        scattered = jax.lax.psum_scatter(x[0], "data", tiled=True)
        swapped = jax.lax.all_to_all(x, "data", 1, 0, tiled=True)
        return jax.lax.psum(x, "data"), gathered[index][None] + index, scattered, swapped

    step = jax.shard_map(
        body, mesh=mesh, in_specs=P("data"), out_specs=(P(), P("data"), P("data"), P("data"))
    )
    total, *rest = jax.jit(step)(x)
    return [np.asarray(total), *map(shards, rest)]


@program
def ring_over_all_hosts():
    mesh = data_mesh()
    ring = [(i, (i + 1) % 8) for i in range(8)]
    step = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "data", ring),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    x = jax.make_array_from_process_local_data(
        NamedSharding(mesh, P("data")), full_array((2, 3)) + 10 * jax.process_index()
    )
    return [shards(jax.jit(step)(x)), shards(step(x))]


@program
def collectives_within_a_host():
    mesh = host_mesh()
    x = sharded(P("host", "local"), (4, 4), mesh)

    def body(x):
        return jax.lax.psum(x, "local"), jax.lax.pmax(x, "host")

    step = jax.shard_map(
        body, mesh=mesh, in_specs=P("host", "local"), out_specs=(P("host"), P(None, "local"))
    )
    return [shards(out) for out in jax.jit(step)(x)]


@program
def device_put_compares_hosts():
    replicated = NamedSharding(host_mesh(), P())
    by_host = NamedSharding(host_mesh(), P("host"))
    same = jax.device_put(full_array(), by_host)
    differs = error_of(lambda: jax.device_put(full_array() + jax.process_index(), replicated))
    own = jax.device_put(jnp.float32(jax.process_index()), jax.local_devices()[1])
    committed = error_of(lambda: jax.device_put(own, replicated))
    return [shards(same), differs, committed.split(" (")[0]]


@program
def resharding_over_all_hosts():
    mesh = host_mesh()
    array = sharded(P("host", "local"), (8, 8))
    by_column = jax.device_put(array, NamedSharding(mesh, P("local", "host")))
    replicated = jax.device_put(by_column, NamedSharding(mesh, P()))
    constrained = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(x.T, NamedSharding(mesh, P(None, "host")))
    )(array)
    return [shards(by_column), np.asarray(replicated), shards(constrained)]


@program
def numpy_arguments_of_a_jit():
    mesh = host_mesh()
    array = sharded(P("host"))
    scaled = jax.jit(lambda x, y, s: x * s + y)(array, full_array() / 4, 2.0)
    rejected = error_of(
        lambda: jax.jit(lambda x: x, in_shardings=NamedSharding(mesh, P("host")))(full_array())
    )
    accepted = jax.jit(jnp.sum, in_shardings=NamedSharding(mesh, P()))(full_array())
    return [shards(scaled), rejected, float(accepted)]


@program
def each_host_computes_alone():
    me = jax.process_index()
    x = jnp.arange(4) * me
    local_mesh = Mesh(np.array(jax.local_devices()), ("local",))
    y = jax.device_put(np.arange(6.0) + me, NamedSharding(local_mesh, P("local")))
    total = jax.jit(jnp.sum)(y)
    extra = float(jnp.linalg.norm(jnp.ones(me + 2))) if me == 0 else None
    return [np.asarray(x), y.is_fully_addressable, shards(y), float(total), extra]


@program
def local_part_of_a_mesh():
    mesh = host_mesh()
    sharding = NamedSharding(mesh, P("local", "host"))
    return [
        dict(mesh.local_mesh.shape), len(mesh.local_devices), mesh.is_multi_process,
        sharding.shard_shape((8, 8)), len(sharding.addressable_devices),
        sorted(map(str, sharding.addressable_devices_indices_map((8, 8)).values())),
    ]  # fmt: skip


@program
def shards_of_other_hosts_have_no_data():
    array = sharded(P(("host", "local")), (8, 2))
    present = [shard.data is not None for shard in array.global_shards]
    return [
        sum(present), len(present), np.asarray(array.addressable_data(0)),
        np.asarray(array.addressable_data(1)), error_of(lambda: array.addressable_data(2).shape),
    ]  # fmt: skip


@program
def arrays_of_different_worlds_do_not_mix():
    array = sharded(P("host"))
    committed = jax.device_put(np.float32(2), jax.local_devices()[1])
    mixed = error_of(lambda: array * committed)[:40]
    return [mixed, shards(array * jnp.float32(2))]


@program
def own_checkpoint_of_each_host():
    array = jax.jit(lambda x: x + 1)(sharded(P("host", None), (8, 4)))
    owned = [s for s in array.addressable_shards if s.replica_id == 0]
    for number, shard in enumerate(owned):
        start = shard.index[0].indices(8)[0]
        np.save(FOLDER / f"own-{jax.process_index()}-{number}-{start}.npy", np.asarray(shard.data))
    multihost_utils.sync_global_devices("saved")
    files = sorted(FOLDER.glob("own-*.npy"), key=lambda file: int(file.stem.split("-")[-1]))
    saved = np.concatenate([np.load(file) for file in files])
    restored = jax.make_array_from_callback(
        (8, 4), NamedSharding(host_mesh(), P("local")), lambda index: saved[index]
    )
    multihost_utils.sync_global_devices("restored")
    return [len(owned), [file.name for file in files], shards(restored)]


@program
def orbax_checkpoint():
    import orbax.checkpoint as ocp

    mesh = host_mesh()
    state = {
        "w": jax.jit(lambda w: w * 3)(sharded(P("host", "local"), (8, 4))),
        "b": jax.device_put(np.arange(4.0, dtype=np.float32), NamedSharding(mesh, P())),
        "step": 7,
    }
    target = {
        "w": jax.ShapeDtypeStruct(
            (8, 4), np.float32, sharding=NamedSharding(mesh, P("local", "host"))
        ),
        "b": jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P("local"))),
        "step": 0,
    }  # fmt: skip
    folder = FOLDER.resolve() / "orbax"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(folder, target)
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith((".", "ocdbt")))
    owners = sorted(p.name for p in folder.glob("ocdbt.process_*"))
    return [names, owners, shards(restored["w"]), shards(restored["b"]), restored["step"]]


@program
def orbax_checkpoint_manager():
    import orbax.checkpoint as ocp

    w = sharded(P("host"), (8, 4))
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=2)
    with ocp.CheckpointManager(FOLDER.resolve() / "manager", options=options) as manager:
        for step in range(6):
            w = jax.jit(lambda w: w + 1)(w)
            manager.save(step, args=ocp.args.StandardSave({"w": w}))
        manager.wait_until_finished()
        target = {"w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=w.sharding)}
        restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(target))
        return [list(manager.all_steps()), shards(restored["w"])]


@program
def batches_of_an_epoch():
    me = jax.process_index()
    examples = np.arange(24, dtype=np.int32)
    order = np.random.default_rng(0).permutation(24)[me::N_HOSTS]
    sharding = NamedSharding(data_mesh(), P("data"))
    seen = []
    for start in range(0, 6, 2):
        own = examples[order[start : start + 2]]
        batch = jax.make_array_from_process_local_data(sharding, own)
        seen.append(
            [own, int(jnp.sum(batch)), multihost_utils.process_allgather(batch, tiled=True)]
        )
    return seen


@program
def host_0_decides_when_to_stop():
    step = 0
    stop = False
    while not stop:
        step += 1
        wants_to_stop = jax.process_index() == 0 and step == 3
        stop = bool(multihost_utils.broadcast_one_to_all(np.bool_(wants_to_stop)))
    return step


@program
def key_value_store():
    from jax._src import distributed

    client, me = distributed.global_state.client, jax.process_index()
    client.key_value_set(f"address/{me}", f"host-{me}")
    before = client.blocking_key_value_get(f"address/{(me + 1) % N_HOSTS}", 60_000)
    client.wait_at_barrier("all set", 60_000)
    entries = sorted(client.key_value_dir_get("address/"))
    twice = error_of(lambda: client.key_value_set(f"address/{me}", "again"))
    absent = error_of(lambda: client.key_value_try_get(f"absent/{me}"))
    return [before, [value for _, value in entries], twice.split(":")[1], absent.split(":")[1]]


@program
def donated_arrays_are_deleted():
    array = sharded(P("host"), (8, 4))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    result = step(array)
    return [array.is_deleted(), shards(result), error_of(lambda: array + 1)]


@program
def loops_and_narrow_types():
    mesh = data_mesh()
    x = sharded(P("data"), (8, 4), mesh).astype(jnp.bfloat16)

    @jax.jit
    def smooth(x):
        def body(carry, _):
            carry = carry * 0.5 + carry.mean(axis=0)
            return carry, carry.sum()

        return jax.lax.scan(body, x, length=3)

    final, sums = smooth(x)
    masks = jnp.where(sharded(P("data"), (8,), mesh) > 3, True, False)
    return [shards(final.astype(jnp.float32)), np.asarray(sums, np.float32), shards(masks)]


@program
def programs_of_two_hosts():
    devices = [device for device in jax.devices() if device.process_index in (1, 3)]
    if jax.process_index() not in (1, 3):
        return None
    mesh = Mesh(np.array(devices).reshape(2, 2), ("host", "local"))
    sharding = NamedSharding(mesh, P("host"))
    x = jax.make_array_from_process_local_data(sharding, full_array((2, 3)) + jax.process_index())
    return [x.shape, float(jax.jit(jnp.sum)(x)), shards(x * 2)]


@program
def callbacks_of_each_device():
    mesh = data_mesh()
    seen = []

    def body(x):
        jax.debug.callback(lambda v: seen.append(np.asarray(v).tolist()), x)
        return x * 2

    step = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    out = jax.jit(step)(sharded(P("data"), (8, 2), mesh))
    jax.block_until_ready(out)
    jax.effects_barrier()
    return [sorted(seen), shards(out)]


@program
def pure_callbacks_of_each_device():
    mesh = data_mesh()
    me = jax.process_index()

    def body(x):
        own = jax.pure_callback(
            lambda v: np.asarray(v) + 0 * me, jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )
        return jax.lax.psum(own, "data")

    step = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())
    return np.asarray(jax.jit(step)(sharded(P("data"), (8, 2), mesh)))


@program
def pmap_over_all_hosts():
    me = jax.process_index()
    own = np.arange(N_LOCAL * 3.0, dtype=np.float32).reshape(N_LOCAL, 3) + 10 * me
    step = jax.pmap(lambda x: (jax.lax.pmean(x, "devices"), x * 2), axis_name="devices")
    mean, doubled = step(own)
    again, _ = step(doubled)
    return [doubled.is_fully_addressable, *map(shards, (mean, doubled, again))]


@program
def training_with_optax():
    import optax

    mesh = data_mesh()
    optimizer = optax.adam(0.1)
    w = jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, P()))
    state = optimizer.init(w)

    @jax.jit
    def step(w, state, x, y):
        loss, gradient = jax.value_and_grad(squared_error)(w, x, y)
        updates, state = optimizer.update(gradient, state, w)
        return optax.apply_updates(w, updates), state, loss

    losses = []
    for x, y in regression_batches(3, 2):
        batch = [
            jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), part)
            for part in (x, y)
        ]
        w, state, loss = step(w, state, *batch)
        losses.append(float(loss))
    return [losses, np.asarray(w), int(state[0].count)]
