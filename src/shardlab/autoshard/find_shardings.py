"""`autoshard`: shardings of a program's arguments that minimise its step time within the memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shardlab._jax.shardy_program import ShardyProgram, lower_once
from shardlab._text.units import parse_bytes
from shardlab.autoshard.answer import Autosharding
from shardlab.autoshard.arguments import (
    Group,
    Leaf,
    bind_constants,
    find_state,
    group_leaves,
    read_leaves,
)
from shardlab.autoshard.evaluation import Assignment, Candidate, Evaluator
from shardlab.autoshard.make_answer import make_answer
from shardlab.autoshard.proven_answer import DEFAULT_PROOF_LIMIT, offer_proven
from shardlab.autoshard.search import ReportStep, Search
from shardlab.autoshard.spec_choices import MeshSizes, mesh_factorizations
from shardlab.autoshard.starts import make_starts
from shardlab.autoshard.step_cost import StepCoster, usable_memory, weight_shapes_of
from shardlab.errors import CannotAutoshard, InvalidSize
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.sharding.mesh import parse_mesh
from shardlab.tracing.stage import argument_names, parse_shape_argument

DEFAULT_HARDWARE = "tpu-v5p"
DEFAULT_BUDGET = 30.0  # seconds of search
_REASON_SHARE = 0.25  # of the budget, for the alternatives of each large array


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """The parsed arguments of `autoshard`."""

    meshes: tuple[MeshSizes, ...]
    hardware: Hardware
    memory_limit: int
    budget: float
    seed: int


def autoshard(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    devices: int | None = None,
    hardware: Any = DEFAULT_HARDWARE,
    memory: Any = None,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    prove: bool = True,
    proof_limit: float = DEFAULT_PROOF_LIMIT,
    on_progress: ReportStep | None = None,
) -> Autosharding:
    """Return shardings of `args` for which `f(*args)` is fastest on a mesh.

    >>> import jax, jax.numpy as jnp
    >>> def loss(params, x): return jnp.sum(jnp.tanh(x @ params["up"]) @ params["down"])
    >>> def step(params, x):
    ...     gradients = jax.grad(loss)(params, x)
    ...     return jax.tree.map(lambda w, g: w - g, params, gradients)
    >>> array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    >>> params = {"up": array(256, 1024), "down": array(1024, 256)}
    >>> autoshard(step, params, array(2**21, 256), mesh="data=8", prove=False).specs
    (Spec(), Spec(), Spec('data', None))

    Give either `mesh`, whose axes are used as they are, or `devices`, and meshes with the axes
    `data` and `model` are searched too. The leaves of `args` are arrays, `jax.ShapeDtypeStruct`s or
    text such as "f32[8,6]"; an argument that has a `NamedSharding` on the mesh keeps it, and so do
    the constraints inside of `f`. `memory` is the limit of a device, by default 90 % of the chip's.
    The search ends after `budget` seconds; the result has the best shardings found until then, and
    so it has after Ctrl-C.

    Then the best shardings are proven, within `proof_limit` seconds: XLA's own partitioner must
    insert the collectives that they were timed with, and the program must return the values of the
    unsharded one on host devices. Shardings that are disproven are discarded for the next best
    ones; `discarded` says why. What cannot be proven is offered, and `proof` says the reason.
    `prove=False` skips all of this.

    Raises `CannotAutoshard` if nothing that was tried fits in the memory, and `ShardingsDisproven`
    if the best that were found are all disproven.
    """
    started = time.monotonic()
    report_step = on_progress or (lambda step: None)
    setting = _parse_setting(mesh, devices, hardware, memory, budget, seed)
    args = tuple(jax.tree.map(parse_shape_argument, arg) for arg in args)
    f, args = bind_constants(f, args)
    state = find_state(f, args)
    axis_names = [name for name, _ in setting.meshes[0]]
    leaves = read_leaves(argument_names(f, args), frozenset(state.values()), axis_names)
    report_step("lowering the program")
    program = lower_once(f, args, setting.meshes[0], state)
    groups = (*group_leaves(leaves), *_point_groups(program))
    weights = [group.shape for group in groups if group.is_state]
    evaluator = Evaluator(
        program=program,
        groups=groups,
        coster=StepCoster(
            hardware=setting.hardware, weight_shapes=frozenset(weight_shapes_of(weights))
        ),
        memory_limit=setting.memory_limit,
    )
    search = Search(
        evaluator=evaluator,
        deadline=started + setting.budget * (1 - _REASON_SHARE),
        seed=setting.seed,
        report_step=report_step,
    )
    candidates = search.find(list(_starts(groups, setting.meshes)))
    if not candidates:
        raise CannotAutoshard(
            "Shardy's passes reject the program with every sharding that was tried.",
            where=getattr(f, "__name__", "the program"),
            fix="shardlab trace shows what the compiler makes of it with your own shardings.",
        )
    fitting = [item for item in candidates if evaluator.fits(item)]
    if not fitting:
        raise _does_not_fit(candidates[0].memory_bytes, setting)
    report_step("comparing the answer with its alternatives")
    answers = _answers(f, leaves, search, fitting, setting, started)
    if not prove or search.is_interrupted:
        return next(answers)
    return offer_proven(f, args, answers, limit_s=proof_limit, report_step=report_step)


def _answers(
    f: Callable[..., Any],
    leaves: Sequence[Leaf],
    search: Search,
    candidates: Sequence[Candidate],
    setting: _Setting,
    started: float,
) -> Iterator[Autosharding]:
    """Yield an answer for each candidate; it is made once those before it are disproven."""
    # After Ctrl-C the answer is expected now, without alternatives.
    deadline = time.monotonic() if search.is_interrupted else started + setting.budget
    for number in range(len(candidates)):
        answer = make_answer(
            f,
            leaves,
            search,
            candidates[number:],
            hardware=setting.hardware,
            deadline=deadline,
            started=started,
        )
        proof_started = time.monotonic()
        yield answer
        # The budget is over by then, and an answer without reasons is a poor one.
        deadline = time.monotonic() + setting.budget * _REASON_SHARE
        started += time.monotonic() - proof_started  # the proof is no part of the search


def _parse_setting(
    mesh: Any, devices: int | None, hardware: Any, memory: Any, budget: float, seed: int
) -> _Setting:
    chip = parse_hardware(hardware)
    if (mesh is None) == (devices is None):
        raise CannotAutoshard(
            "autoshard needs either a mesh or a number of devices.",
            where=f"mesh {mesh}, devices {devices}",
            fix='mesh="data=16,model=4", or devices=64 to search meshes too.',
        )
    if mesh is not None:
        sizes = tuple(parse_mesh(mesh).shape.items())
        meshes: tuple[MeshSizes, ...] = (sizes,)
    else:
        if not isinstance(devices, int) or devices < 1:
            raise InvalidSize(f"{devices!r} is not a number of devices.", fix="devices=64.")
        meshes = tuple(mesh_factorizations(devices))
    limit = usable_memory(chip) if memory is None else parse_bytes(memory)
    return _Setting(meshes=meshes, hardware=chip, memory_limit=limit, budget=budget, seed=seed)


def _point_groups(program: ShardyProgram) -> tuple[Group, ...]:
    return tuple(
        Group(
            name=point.name,
            shape=point.shape,
            dtype=point.dtype,
            leaves=(),
            n_bytes=0,
            is_state=False,
            point=point.name,
            source=point.source,
            is_carry=point.is_carry,
        )
        for point in program.points
    )


def _starts(
    groups: Sequence[Group], meshes: Sequence[MeshSizes]
) -> list[tuple[str, MeshSizes, Assignment]]:
    """Return the starts on every mesh; those that use all axes alike only on the first one."""
    starts: list[tuple[str, MeshSizes, Assignment]] = []
    for number, mesh in enumerate(meshes):
        for name, assignment in make_starts(groups, mesh):
            if number == 0 or name in ("Megatron", "FSDP+Megatron"):
                starts.append((name, mesh, assignment))
    return starts


def _does_not_fit(least: int, setting: _Setting) -> CannotAutoshard:
    from shardlab._text.units import bytes_text

    mesh = ",".join(f"{name}={size}" for name, size in setting.meshes[0])
    return CannotAutoshard(
        f"Nothing that was tried fits: the least memory found is {bytes_text(least)} a device, and "
        f"{bytes_text(setting.memory_limit)} are usable.",
        where=f"mesh {mesh}, {setting.hardware.title}",
        fix="more devices, a smaller batch, jax.checkpoint, or a longer budget.",
    )
