"""The terminal tour: small programs on devices that do not exist, and what goes wrong on many.

    python examples/tour.py

Each stop runs a function of seed_problems.py, plain JAX, inside `shardlab.simulated`, and draws
what the devices hold. Then two programs that are broken on purpose: the mistakes give the right
answer on one device and are only visible on many. Last, what a training step sends on 512
devices, and whether a whole model fits.
"""

from __future__ import annotations

import warnings

import hang
import jax
import jax.numpy as jnp
import numpy as np
import seed_problems
import train_step
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

import shardlab
from shardlab.findings.report_text import report_rich
from shardlab.findings.source import SourceLocation
from shardlab.render.terminal import picture_rich
from shardlab.sharding.layout_picture import device_values_picture

N_DEVICES = 8
ALL = ("data", "model")
console = Console(width=min(Console().width, 110), highlight=False)


def main() -> None:
    console.print(Text("shardlab: 8 devices on this one CPU", style="bold"))
    with shardlab.simulated(devices=N_DEVICES):
        console.print(f"jax.device_count() says {jax.device_count()}.\n")
        for stop in (replicate, split, layout, reduce, nnx_layer, forget):
            stop()
    deadlock()
    traffic()
    whole_model()
    console.print(Rule())
    console.print(
        "Next: source .venv/bin/activate\n"
        "      shardlab learn      # the course, judged on many devices\n"
        "      shardlab layout 4096x16384:bf16 --spec None,model --mesh data=2,model=4\n"
        "      shardlab run --devices 512 your_program.py\n"
        "      shardlab check your_program.py:step\n"
        "      shardlab trace your_program.py:step --mesh data=16,model=32\n"
        "      shardlab plan llama3-70b --mesh fsdp=512 --strategy fsdp --hardware v5p\n"
        "      docs/tutorial.md"
    )


# ------------------------------------------------------------------------------------- the stops


def replicate() -> None:
    heading("1. replicated_sharding_value", "P() puts all of x on every device; sum it once.")
    mesh = mesh_2x4()
    x = jnp.array([1.0, 2.0, 3.0])
    show_shards(jax.device_put(x, NamedSharding(mesh, PartitionSpec())))
    total = seed_problems.replicated_sharding_value(x, mesh)
    result(total, "6.0, not 8 x 6.0: copies are not terms")


def split() -> None:
    heading("2. shard_map_double", "P(('data', 'model')) cuts x in 8; each device doubles one.")
    y = seed_problems.shard_map_double(jnp.arange(16.0), mesh_2x4())
    show_shards(y)
    result(y, "the slices joined again, in order")


def layout() -> None:
    heading("3. partition_spec_layout", "One shard of a kernel under P(None, 'model').")
    console.print(shardlab.layout((8, 16), "None,model", "data=2,model=4"))
    result(seed_problems.partition_spec_layout(4, 8, 16), "[kernel_in, kernel_out // 4]")


def reduce() -> None:
    heading("4. shard_map_psum", "Each device sums its slice; psum adds the parts up everywhere.")
    mesh, x = mesh_2x4(), jnp.arange(1.0, 17.0)

    def per_shard(y):
        part = shardlab.peek("part", jnp.sum(y))
        return jax.lax.psum(part, ALL)

    total = jax.shard_map(
        per_shard, mesh=mesh, in_specs=PartitionSpec(ALL), out_specs=PartitionSpec()
    )
    total(x)
    parts = {p.coordinate["data"] * 4 + p.coordinate["model"]: p for p in shardlab.peeks("part")}
    show_texts(x, mesh, {device: f"part {p.value:g}" for device, p in parts.items()})
    result(seed_problems.shard_map_psum(x, mesh), "the sum of the eight parts, on all of them")


def nnx_layer() -> None:
    heading("5. shard_map_simulate", "One nnx.Linear, eight slices of the batch, the same weights.")
    x = jnp.arange(48.0).reshape(16, 3) / 10
    loop = seed_problems.shard_map_simulate(0, x, N_DEVICES, 4)
    mapped = seed_problems.nnx_shard_map(0, x, mesh_2x4(), 4)
    show_shards(mapped)
    gap = float(jnp.max(jnp.abs(loop - mapped)))
    result(mapped, f"a loop over slices and the real shard_map agree: largest gap {gap:.1g}")


def forget() -> None:
    heading("And what one device cannot show", "The same sum with the psum forgotten.")
    x = jnp.arange(1.0, 17.0)

    def without_psum(mesh: Mesh):
        return jax.shard_map(
            jnp.sum,
            mesh=mesh,
            in_specs=PartitionSpec(mesh.axis_names),
            out_specs=PartitionSpec(),
            check_vma=False,
        )

    alone = without_psum(seed_problems.one_device_mesh())(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        many = without_psum(mesh_2x4())(x)
        jax.effects_barrier()
    console.print(f"on 1 device:  {alone}   right, so nobody notices")
    console.print(f"on 8 devices: {many}     and shardlab says why:\n")
    for warning in caught:
        console.print(Text(str(warning.message), style="yellow"))


def deadlock() -> None:
    heading("A step that hangs", "shardlab check examples/hang.py:step --mesh data=8")
    report = shardlab.check(hang.step, *hang.example_args, mesh="data=8")
    console.print(report_rich(report, console.width, SourceLocation.read_line))
    console.print()


def traffic() -> None:
    heading("What 512 devices send", "shardlab trace examples/train_step.py:step ...")
    trace = shardlab.trace(train_step.step, *train_step.example_args, mesh="data=16,model=32")
    console.print(trace.on("tpu-v5p").timeline_text(console.width), markup=False)
    console.print()
    console.print(trace.traffic_text(console.width), markup=False)


def whole_model() -> None:
    heading("Does Llama-3-70B fit?", "shardlab plan llama3-70b --mesh fsdp=64,tensor=16 ...")
    made = shardlab.plan(
        "llama3-70b",
        "fsdp=64,tensor=16",
        strategy="fsdp+tensor",
        optimizer="adamw",
        hardware="tpu-v5p",
        workload=shardlab.Workload(batch=1024, sequence=8192),
    )
    console.print(made)


# -------------------------------------------------------------------------------------- drawing


def heading(title: str, line: str) -> None:
    console.print(Rule(pattern=Text(title, style="bold"), align="left"))
    console.print(line + "\n")


def result(value: jax.Array, note: str) -> None:
    shown = np.array2string(np.asarray(value), threshold=8, edgeitems=3, precision=3)
    console.print(f"result: {shown}   ({note})\n", markup=False)


def show_shards(y: jax.Array) -> None:
    """Draw the mesh with each device's own numbers in its cell."""
    texts = {
        s.device: np.array2string(s.data, threshold=4, edgeitems=1, precision=1)
        for s in shardlab.shards(y)
    }
    show_texts(y, y.sharding.mesh, texts, y.sharding.spec)


def show_texts(x, mesh: Mesh, texts: dict[int, str], spec=(ALL,)) -> None:
    layout = shardlab.layout(x.shape, spec, mesh)
    picture = device_values_picture(layout, texts, caption="what each device holds")
    console.print(picture_rich(picture, console.width))


def mesh_2x4() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


if __name__ == "__main__":
    main()
