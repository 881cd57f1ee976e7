"""Where `advise` ranks the meshes that people used, asked for model, devices, batch and sequence.

One run of each family (software, model, chip, precision, mesh axes) is asked for, the first of the
file. `advise` does not know software, microbatch, remat policy or mesh of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.planner_accuracy import PublishedRun, load_runs
from benchmarks.report import Goal, Section

_TOP = 3
_GOAL = 0.8


@dataclass(frozen=True, kw_only=True)
class MeshRank:
    """The rank of a published mesh; 0 if `advise` does not list it."""

    run: PublishedRun
    rank: int
    n_ranked: int
    best: str  # the mesh that is ranked first
    reason: str  # of `advise --mesh`

    @property
    def is_in_top(self) -> bool:
        return 1 <= self.rank <= _TOP


def rank_published_meshes() -> list[MeshRank]:
    """Return the rank of one mesh of each family of runs."""
    runs, architectures = load_runs()
    return [rank_mesh(run, architectures[run.model]) for run in family_runs(runs)]


def family_runs(runs: Iterable[PublishedRun]) -> list[PublishedRun]:
    """Return the first run of each family."""
    families: dict[object, PublishedRun] = {}
    for run in runs:
        axes = tuple(name for name, size in _mesh_sizes(run) if size > 1)
        key = (run.group, run.model, run.hardware, run.precision, axes)
        families.setdefault(key, run)
    return list(families.values())


def _mesh_sizes(run: PublishedRun) -> Iterator[tuple[str, int]]:
    for axis in run.mesh.split(","):
        name, _, size = axis.partition("=")
        yield name, int(size)


def rank_mesh(run: PublishedRun, architecture: object) -> MeshRank:
    """Return the rank of the mesh of a run, and why it is not the first."""
    from math import prod

    from shardlab.planner.advice.make_advice import advise
    from shardlab.planner.models.transformer import transformer_model

    advice = advise(
        transformer_model(run.model, architecture),
        run.hardware,
        prod(size for _, size in _mesh_sizes(run)),
        batch=run.batch,
        sequence=run.sequence,
        precision=run.precision,
        mesh=run.mesh,
    )
    requested = advice.requested
    meshes = [candidate.mesh for candidate in advice.ranked]
    return MeshRank(
        run=run,
        rank=meshes.index(requested.mesh) + 1 if requested.mesh in meshes else 0,
        n_ranked=len(meshes),
        best="-" if advice.best is None else advice.best.mesh_text,
        reason=requested.reason,
    )


def add_ranks(section: Section, ranks: Sequence[MeshRank]) -> None:
    """Add the figures and their goal to a section of the benchmark."""
    for name, group in rank_groups(ranks):
        section.notes.append(f"published mesh in the top three of advise, {name}: {_share(group)}")
    section.goals.append(
        Goal("published meshes in the top three of advise", _GOAL, top_share(ranks), at_most=False)
    )
    section.data += [
        {"id": rank.run.id, "mesh": rank.run.mesh, "rank": rank.rank, "reason": rank.reason}
        for rank in ranks
    ]


def rank_groups(ranks: Sequence[MeshRank]) -> Iterator[tuple[str, list[MeshRank]]]:
    """Yield the ranks of all runs, on TPUs, on GPUs, and by split."""
    groups = {"all": list(ranks), "TPU": [], "GPU": [], "fit": [], "held out": []}
    for rank in ranks:
        groups["TPU" if rank.run.hardware.startswith("tpu") else "GPU"].append(rank)
        groups["fit" if rank.run.split == "fit" else "held out"].append(rank)
    yield from groups.items()


def top_share(ranks: Sequence[MeshRank]) -> float:
    return sum(rank.is_in_top for rank in ranks) / max(len(ranks), 1)


def _share(ranks: Sequence[MeshRank]) -> str:
    n_top = sum(rank.is_in_top for rank in ranks)
    return f"{n_top} of {len(ranks)} ({100 * top_share(ranks):.0f} %)"


_SECTION = """
## Ranks of the published meshes

`shardlab advise` with model, chip, number of devices, batch, sequence and precision of a run: where
is the mesh that was used? One run of each family (software, model, chip, precision, mesh axes).
Goal: among the first three in 80 %.

| | in the top three |
|---|---|
{shares}

The others, with the reason that `advise --mesh` gives; rank - is not listed.

| run | mesh | rank | ranked first | reason |
|---|---|---|---|---|
{misses}
"""


def ranks_section(ranks: Sequence[MeshRank]) -> str:
    """Return the section of docs/planner-accuracy.md."""
    return _SECTION.format(
        shares="\n".join(f"| {name} | {_share(group)} |" for name, group in rank_groups(ranks)),
        misses="\n".join(_miss_row(rank) for rank in ranks if not rank.is_in_top),
    )


def _miss_row(rank: MeshRank) -> str:
    place = f"{rank.rank} of {rank.n_ranked}" if rank.rank else "-"
    return f"| {rank.run.id} | {rank.run.mesh} | {place} | {rank.best} | {rank.reason} |"
