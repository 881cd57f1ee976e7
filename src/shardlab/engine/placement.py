"""The sharding that each output of a jit would have.

What the program says is kept to the letter: `out_shardings`, the types of Explicit axes, the
out_specs of a shard_map, constraints. Between those the compiler chooses, and `forecast` guesses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardlab.engine import _jax
from shardlab.engine._jax import seams
from shardlab.engine.forecast import Parts, follow, parts_of
from shardlab.engine.virtual import virtual_mesh


def outputs(jaxpr: Any, in_shardings: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Return a sharding for each output; None means the first device."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    mesh = _mesh_of(inner, in_shardings, params)
    if mesh is None:
        return [_single(s) for s in _first_devices(in_shardings, params["out_shardings"])]
    ins = [parts_of(s, v.aval.ndim) for s, v in zip(in_shardings, inner.invars, strict=True)]
    guesses = follow(inner, ins)
    return [
        _output(wanted, atom.aval, guess, mesh)
        for wanted, atom, guess in zip(
            params["out_shardings"], inner.outvars, guesses, strict=True
        )
    ]


def _output(wanted: Any, aval: Any, guess: Parts, mesh: Mesh) -> Any:
    if not seams.is_unspecified(wanted):
        return concrete(wanted, mesh)
    if _jax.is_placed(aval) and aval.sharding.mesh.are_all_axes_explicit:
        return NamedSharding(mesh, aval.sharding.spec)
    return NamedSharding(mesh, spec_of(guess))


def concrete(sharding: Any, mesh: Mesh | None = None) -> Any:
    """Return `sharding` on devices, where it was given on an AbstractMesh."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        fits = mesh is not None and mesh.abstract_mesh.shape_tuple == sharding.mesh.shape_tuple
        return NamedSharding(mesh if fits else virtual_mesh(sharding.mesh), sharding.spec)
    return sharding


def spec_of(parts: Parts) -> PartitionSpec:
    """Return the spec, without trailing Nones, as the compiler's own results are written."""
    entries = [None if not p else p[0] if len(p) == 1 else p for p in parts]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _first_devices(ins: Sequence[Any], outs: Sequence[Any]) -> Iterator[Any]:
    """Yield for each output the single-device sharding that it is given or inherits."""
    inherited = next((s for s in ins if isinstance(s, seams.SingleDeviceSharding)), None)
    for out in outs:
        yield inherited if seams.is_unspecified(out) else out


def _single(sharding: Any) -> Any:
    return sharding


def _mesh_of(inner: Any, in_shardings: Sequence[Any], params: dict[str, Any]) -> Mesh | None:
    """Return the mesh that this program runs on, the most concrete one that it mentions."""
    given = [s.mesh for s in (*in_shardings, *params["out_shardings"]) if hasattr(s, "mesh")]
    found = [m for m in (*given, *_meshes_in(inner)) if not m.empty]
    for mesh in found:
        if isinstance(mesh, Mesh):
            return mesh
    context = _jax.context_mesh()
    if context is not None and (found or not params["ctx_mesh"].empty):
        return context
    return virtual_mesh(found[0]) if found else None


@functools.lru_cache(maxsize=1024)
def _meshes_in(inner: Any) -> tuple[Any, ...]:
    """Return the meshes that shard_maps and constraints of a jaxpr mention, at any depth."""
    out: list[Any] = []
    for eqn in inner.eqns:
        if eqn.primitive.name == "shard_map":
            out.append(eqn.params["mesh"])
        for key in ("sharding", "dst_sharding"):
            mesh = getattr(eqn.params.get(key), "mesh", None)
            if mesh is not None:
                out.append(mesh)
        for body in _jax.inner_jaxprs(eqn.params):
            out += _meshes_in(_jax.open_jaxpr(body)[0])
    return tuple(out)
