"""Small problems for the judge's own tests: a reference, a call, and few meshes."""

from pathlib import Path

from shardlab.catalogue.problem import Part, Problem

PROBLEMS = Path(__file__).parent / "problems"
IMPORTS = """import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
"""
CALLS = {
    "total": "total(x, mesh)",
    "summary": "summary(x, mesh)",
    "doubled": "doubled(x, mesh)",
    "numbered": "numbered(n, mesh)",
    "linear": "linear(x, w, b, mesh)",
    "slope": "slope(w, x, mesh)",
    "weighted": "weighted(x, w, mesh)",
    "dropped": "dropped(key, x, mesh)",
    "halves": "halves(total, n)",
}


def problem(
    name,
    *,
    ladder=("data=1", "data=2", "rows=3"),
    large=(),
    requires=(),
    budget=None,
    tags=(),
    limits=None,
):
    kind = "value" if name == "halves" else "program"
    part = Part(
        number=1,
        name="",
        call=CALLS[name],
        kind=kind,
        axes=("data",),
        meshes=ladder,
        simulated_meshes=large,
        cases=6,
        requires=requires,
        budget=budget or {},
        rtol=1e-5,
        atol=1e-5,
    )
    folder = PROBLEMS / name
    return Problem(
        folder=folder,
        slug=name,
        track="tests",
        title=name,
        difficulty="easy",
        content_version=1,
        tags=tags,
        parts=(part,),
        limits=limits or {},
    )


def shard_map_body(body, in_specs="P(a)", out_specs="P()", options="", arguments="x"):
    """Return a function body that is one shard_map over the first mesh axis, called `a`."""
    return f"""
    a = mesh.axis_names[0]
    return jax.shard_map({body}, mesh=mesh, in_specs={in_specs}, out_specs={out_specs}{options})(
        {arguments}
    )
"""


def submission(name, body):
    """Return the source of a submission: the function body begins in line 7."""
    return f"{IMPORTS}\n\ndef {CALLS[name]}:{body}"
