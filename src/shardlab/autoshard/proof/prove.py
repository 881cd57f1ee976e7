"""`prove`: whether shardings of a jit program are what they are claimed to be.

Three proofs, each independent of the search that found the shardings:

1. collectives: XLA's own partitioner, on a mesh that exists only for the compiler, inserts what was
   claimed (`collective_comparison.py`);
2. values: the partitioned program, run on real host devices, returns what the unsharded one returns
   (`device_run.py`);
3. memory: the compiler's argument bytes per device are the planned ones to the byte, and arguments
   and outputs fit the limit (`compiler_proof.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab._text.units import count_text
from shardlab.autoshard.answer import Autosharding
from shardlab.autoshard.arguments import find_state
from shardlab.autoshard.proof.compiler_proof import prove_by_compiler
from shardlab.autoshard.proof.device_run import prove_values
from shardlab.autoshard.proof.flat_program import FlatProgram, flatten_program
from shardlab.autoshard.proof.proof_record import Proof
from shardlab.autoshard.proof.proof_request import ProofOptions, ProofRequest
from shardlab.errors import LayoutMismatch
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.spec import Spec, parse_spec


def prove(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    specs: Sequence[Any],
    options: ProofOptions | None = None,
) -> Proof:
    """Return what can be proven about `f(*args)` with its arguments sharded by `specs` on `mesh`.

    `args` is a tuple of pytrees of arrays or ShapeDtypeStructs, `specs` has one spec for each of
    `jax.tree.leaves(args)`. Raises `LayoutMismatch` and other layout errors for specs that do not
    fit the arguments. A proof that cannot be made is "not proven", with the reason.

    >>> import jax, jax.numpy as jnp
    >>> w, x = jnp.ones((8, 4)), jax.ShapeDtypeStruct((4,), jnp.float32)
    >>> proof = prove(lambda w, x: w @ x, (w, x), "data=4", ("data", ""))
    >>> proof.values.verdict, proof.memory.argument_bytes  # 8 * 4 * 4 / 4 + 4 * 4
    ('proven', 48)
    """
    options = options or ProofOptions()
    parsed_mesh = parse_mesh(mesh)
    program = flatten_program(f, args, options.state)
    parsed_specs = _parse_specs(program, specs)
    request = ProofRequest(
        f=f,
        args=args,
        program=program,
        mesh=tuple(parsed_mesh.shape.items()),
        specs=parsed_specs,
        # First of all: it raises for specs that do not fit, before anything is compiled.
        shard_bytes=_shard_bytes(program, parsed_specs, parsed_mesh),
        options=options,
    )
    n_devices = count_text(parsed_mesh.n_devices, "device")
    options.on_progress(f"proving collectives and memory: XLA compiles for {n_devices}")
    collectives, memory = prove_by_compiler(request)
    options.on_progress("proving values: a run on host devices")
    return Proof(
        program=program.name,
        mesh=request.mesh,
        collectives=collectives,
        values=prove_values(
            program,
            request.mesh,
            parsed_specs,
            options.run_limit_s,
            n_constraints=len(options.constraints),
        ),
        memory=memory,
    )


def prove_answer(
    f: Callable[..., Any], args: Sequence[Any], answer: Autosharding, **options: Any
) -> Proof:
    """Return what can be proven about an answer of `autoshard` for `f(*args)`.

    The state and the constraints are those of the answer, and so is the memory limit; other fields
    of `ProofOptions` may be given.
    """
    settings = ProofOptions(
        state=find_state(f, tuple(args)),
        constraints=answer.constraints,
        **{"memory_limit": answer.memory_limit, **options},
    )
    return prove(f, args, answer.mesh, answer.specs, settings)


def _parse_specs(program: FlatProgram, specs: Sequence[Any]) -> tuple[Spec, ...]:
    if len(specs) != len(program.leaves):
        raise LayoutMismatch(
            f"There are {len(specs)} specs for {len(program.leaves)} arrays.",
            where=f"the arguments of '{program.name}'",
            fix="pass one spec for each of jax.tree.leaves(args), in that order.",
        )
    return tuple(map(parse_spec, specs))


def _shard_bytes(program: FlatProgram, specs: Sequence[Spec], mesh: Mesh) -> tuple[int, ...]:
    return tuple(
        layout(aval.shape, spec, mesh, str(aval.dtype)).bytes_per_device
        for aval, spec in zip(program.avals, specs, strict=True)
    )
