"""The terminal tour (`make lab`): three things that one device does not show.

    python examples/tour.py

A bug that one device hides, a deadlock that only a cluster would meet, and a program on 512
devices, all on this machine's one CPU.
"""

from __future__ import annotations

import time
import warnings

import forgotten_psum
import hang
import jax
import jax.numpy as jnp
import train_step
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

import shardlab

SPECS = forgotten_psum.SPECS
console = Console(width=min(Console().width, 100), highlight=False)

NEXT_STEPS = """\
Next: source .venv/bin/activate, then
  shardlab check your_program.py:step           bugs that one device hides
  shardlab run --devices 512 your_program.py    your program, unchanged
  shardlab trace your_program.py:step --mesh data=16,model=32
  shardlab plan llama3-70b --mesh fsdp=64,tensor=16 --strategy fsdp+tensor
  shardlab learn                                the course
docs/tutorial.md starts from the beginning."""


def main() -> None:
    show_hidden_bug()
    show_deadlock()
    show_512_devices()
    console.print(Rule())
    console.print(NEXT_STEPS, markup=False)


def show_hidden_bug() -> None:
    heading("1. Correct on 1 device, wrong on 8", "examples/forgotten_psum.py averages a loss.")
    w, x, y = jnp.ones(6), jnp.arange(288.0).reshape(48, 6) / 100, jnp.ones(48)
    for n_devices in (1, 8):
        loss = shardlab.shard_map(forgotten_psum.body, mesh=f"data={n_devices}", **SPECS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shardlab.ReplicasDiffer)  # the check below says more
            value = float(loss(w, x, y))
        console.print(f"  loss on {n_devices} device{'s' * (n_devices > 1)}: {value:.4f}")
    console.print("\n$ shardlab check examples/forgotten_psum.py:loss --mesh data=8")
    console.print(shardlab.check(forgotten_psum.loss, *forgotten_psum.example_args, mesh="data=8"))


def show_deadlock() -> None:
    heading("2. A step that blocks forever on a cluster", "examples/hang.py clips gradients.")
    console.print("$ shardlab check examples/hang.py:step --mesh data=8")
    console.print(shardlab.check(hang.step, *hang.example_args, mesh="data=8"))


def show_512_devices() -> None:
    heading("3. 512 devices on this CPU", "The same loss, with its psum, forward and backward.")

    def loss(w, x):
        return jax.lax.pmean(jnp.mean((x @ w) ** 2), ("data", "model"))

    spec = jax.sharding.PartitionSpec
    step = shardlab.shard_map(
        jax.value_and_grad(loss),
        mesh="data=16,model=32",
        in_specs=(spec(), spec(("data", "model"))),
        out_specs=(spec(), spec()),
    )
    w, x = jnp.array([1.0, -1.0]), jnp.arange(2048.0).reshape(1024, 2)
    start = time.perf_counter()
    value, gradient = jax.block_until_ready(jax.jit(step)(w, x))
    seconds = time.perf_counter() - start
    console.print(f"  loss {float(value)}, gradient {gradient.tolist()}, in {seconds:.1f} s")
    console.print("\n$ shardlab trace examples/train_step.py:step --mesh data=16,model=32 ...")
    trace = shardlab.trace(train_step.step, *train_step.example_args, mesh="data=16,model=32")
    console.print(trace.on("tpu-v5p").timeline_text(console.width), markup=False)
    console.print()


def heading(title: str, line: str) -> None:
    console.print()
    console.print(Rule(Text(title, style="bold"), align="left"))
    console.print(line + "\n")


if __name__ == "__main__":
    main()
