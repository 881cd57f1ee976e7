"""Whether the user's reference returns the same arrays as the program."""

from __future__ import annotations

from shardlab.errors import InvalidType
from shardlab.simulator.run_records import MeshRun


def check_same_outputs(run: MeshRun, reference: MeshRun) -> None:
    """Raise `InvalidType` if the reference does not return the same arrays as the program."""
    if list(run.outputs) != list(reference.outputs):
        differing = [
            f"{owner} has {', '.join(path or 'a single array' for path in paths[:4])}"
            for owner, paths in (
                ("only the program", [p for p in run.outputs if p not in reference.outputs]),
                ("only the reference", [p for p in reference.outputs if p not in run.outputs]),
            )
            if paths
        ]
        problem = "; ".join(differing) or "the order of the outputs differs"
    else:
        shapes = [
            f"output {path} is {leaf.value.shape}, and {reference.outputs[path].value.shape} in "
            "the reference".replace("output  is", "the output is")
            for path, leaf in run.outputs.items()
            if leaf.value.shape != reference.outputs[path].value.shape
        ]
        problem = "; ".join(shapes[:4])
    if problem:
        raise InvalidType(
            f"The reference returns other arrays than the program: {problem}.",
            where=f"the outputs on {run.mesh_text}",
            fix="return the same structure from both, with full arrays of the same shapes.",
        )
