"""A jit program lowered once on an abstract mesh, and partitioned for any shardings of it.

JAX traces and lowers the program a single time. For each candidate the module is cloned, the
`sdy.sharding` of the arguments is set, and Shardy's passes, which jaxlib contains, propagate the
shardings and make every resharding a collective: tens of milliseconds, without XLA, for a mesh of
any size.

>>> import jax, jax.numpy as jnp
>>> args = jnp.ones((8, 16)), jnp.ones((16, 4))
>>> program = lower_once(lambda x, w: x @ w, args, (("model", 4),))
>>> partitioned = program.partition([((), ("model",)), (("model",), ())])
>>> [(call.kind, call.operand_bytes) for call in partitioned.collectives]
[('all_reduce', 128)]
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src.lib.mlir import ir, passmanager  # runs Shardy's passes
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardlab._jax.call_inlining import inline_calls
from shardlab._jax.constraint_points import MARK, mark_constraint_points, marked_line
from shardlab._jax.module_source import SourceLines, shape_name
from shardlab._jax.partitioned_program import DimAxes, PartitionedProgram
from shardlab._jax.partitioned_reader import PartitionedReader

MeshSizes = tuple[tuple[str, int], ...]

_PIPELINE = (
    "builtin.module(sdy-propagation-pipeline,func.func(sdy-sharding-constraint-to-reshard),"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives))"
)


class PartitioningFailed(Exception):
    """Shardy's passes reject the program with these shardings; the message is theirs."""


@dataclass(frozen=True, kw_only=True)
class ConstraintPoint:
    """A value that a `with_sharding_constraint` may shard; `name` is its line and shape."""

    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    is_carry: bool  # of a scan


@dataclass(kw_only=True)
class ShardyProgram:
    """A lowered program; `partition` may be called any number of times."""

    module: Any
    mesh: MeshSizes
    arguments: tuple[jax.ShapeDtypeStruct, ...]  # in the order of jax.tree.leaves
    results: tuple[jax.ShapeDtypeStruct, ...]
    points: tuple[ConstraintPoint, ...]
    # index of a result -> index of the argument that it replaces in the next step
    state: Mapping[int, int] = field(default_factory=dict)
    _readers: dict[MeshSizes, PartitionedReader] = field(default_factory=dict)

    def partition(
        self,
        argument_axes: Sequence[DimAxes],
        constraints: Mapping[str, DimAxes] | None = None,
        mesh: MeshSizes | None = None,
    ) -> PartitionedProgram:
        """Return the program with these shardings of its arguments.

        `constraints` are shardings by the name of a constraint point; other points stay free.
        Results in `state` get the sharding of their argument, so that a step can be repeated.
        Another `mesh` has the same axis names. Raises `PartitioningFailed`.
        """
        mesh = mesh or self.mesh
        with self.module.context:
            operation = self._annotated(argument_axes, constraints or {}, mesh)
            try:
                passmanager.PassManager.parse(_PIPELINE).run(operation)
            except ir.MLIRError as error:
                raise PartitioningFailed(str(error)) from error
            if mesh not in self._readers:
                self._readers[mesh] = PartitionedReader(dict(mesh))
            return self._readers[mesh].read(find_main(operation), frozenset(self.state))

    def annotated_module(
        self, argument_axes: Sequence[DimAxes], constraints: Mapping[str, DimAxes]
    ) -> bytes:
        """Return the module with these shardings before any pass, as XLA would compile it."""
        with self.module.context:
            operation = self._annotated(argument_axes, constraints, self.mesh)
            output = io.BytesIO()
            operation.write_bytecode(output)
            return output.getvalue()

    def _annotated(
        self,
        argument_axes: Sequence[DimAxes],
        constraints: Mapping[str, DimAxes],
        mesh: MeshSizes,
    ) -> Any:
        operation = self.module.operation.clone()
        if mesh != self.mesh:
            _set_mesh(operation, mesh)
        main = find_main(operation)
        # A random key is lowered to an array of integers with one more dimension.
        ranks = [len(ir.RankedTensorType(argument.type).shape) for argument in main.arguments]
        argument_axes = [
            (*axes, *((),) * (rank - len(axes)))
            for axes, rank in zip(argument_axes, ranks, strict=True)
        ]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_sharding_attributes(axes) for axes in argument_axes]
        )
        main.attributes["res_attrs"] = ir.ArrayAttr.get(
            [
                _sharding_attributes(argument_axes[self.state[index]])
                if index in self.state
                else ir.DictAttr.get({})
                for index in range(len(self.results))
            ]
        )
        _set_constraints(main, constraints)
        return operation


def lower_once(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: MeshSizes,
    state: Mapping[int, int] | None = None,
) -> ShardyProgram:
    """Return `f(*args)`, traced and lowered on an abstract mesh with these axes.

    The leaves of `args` are arrays or `jax.ShapeDtypeStruct`s; their own shardings are ignored.
    """
    abstract_mesh = AbstractMesh(
        tuple(size for _, size in mesh),
        tuple(name for name, _ in mesh),
        axis_types=(jax.sharding.AxisType.Auto,) * len(mesh),
    )
    replicated = NamedSharding(abstract_mesh, PartitionSpec())
    leaves, tree = jax.tree.flatten(tuple(args))
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    sharded = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=replicated) for s in shapes]

    # A new function each time: JAX caches traces by function, and another mesh has other marks.
    def program(*args: Any) -> Any:
        return f(*args)

    with jax.sharding.use_abstract_mesh(abstract_mesh), mark_constraint_points(abstract_mesh):
        # keep_unused: the arguments of the module stay the leaves of `args`.
        traced = jax.jit(program, keep_unused=True).trace(*jax.tree.unflatten(tree, sharded))
        module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    with module.context as context:
        context.enable_multithreading(False)
        inline_calls(module.operation)
        points = _name_points(find_main(module.operation))
    return ShardyProgram(
        module=module,
        mesh=mesh,
        arguments=tuple(shapes),
        results=tuple(jax.tree.leaves(traced.out_info)),
        points=points,
        state=dict(state or {}),
    )


def find_main(module: Any) -> Any:
    for function in module.regions[0].blocks[0].operations:
        if getattr(function, "name", None) is not None and str(function.name) == '"main"':
            return function
    raise AssertionError("a lowered module has a function main")


def _sharding_attributes(axes: DimAxes) -> Any:
    return ir.DictAttr.get({"sdy.sharding": ir.Attribute.parse(_sharding_text(axes))})


def _sharding_text(axes: DimAxes) -> str:
    dims = ", ".join("{" + ", ".join(f'"{name}"' for name in names) + "}" for names in axes)
    return f"#sdy.sharding<@mesh, [{dims}]>"


_POINT = "shardlab.point"  # the attribute of a marked constraint: the name of its point


def _name_points(main: Any) -> tuple[ConstraintPoint, ...]:
    """Name the marked constraints by line and shape; equal ones are one point.

    A point of a loop body or of layers with equal shapes stands for all of them, and for its
    cotangents.
    """
    sources = SourceLines()
    points: dict[str, ConstraintPoint] = {}
    for op in _constraint_operations(main):
        source, name_stack = sources.find(op.location)
        if MARK not in name_stack:
            continue
        carry_line = marked_line(name_stack)
        source = carry_line or source
        value_type = ir.RankedTensorType(op.results[0].type)
        name = shape_name(source, value_type.shape)
        op.attributes[_POINT] = ir.StringAttr.get(name)
        # Under vmap the user's value has fewer dimensions than this one.
        if source and "vmap(" not in name_stack:
            points[name] = ConstraintPoint(
                name=name,
                source=source,
                shape=tuple(value_type.shape),
                dtype=str(value_type.element_type),
                is_carry=carry_line is not None,
            )
    return tuple(points.values())


def _set_constraints(main: Any, constraints: Mapping[str, DimAxes]) -> None:
    """Give the marked constraints their shardings, and remove those that have none."""
    for op in _constraint_operations(main):
        if _POINT not in op.attributes:
            continue
        name = ir.StringAttr(op.attributes[_POINT]).value
        if name in constraints:
            op.attributes["sharding"] = ir.Attribute.parse(_sharding_text(constraints[name]))
        else:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _constraint_operations(main: Any) -> list[Any]:
    operations: list[Any] = []

    def collect(op: Any) -> Any:
        if op.name == "sdy.sharding_constraint":
            operations.append(op.operation)
        return ir.WalkResult.ADVANCE

    main.operation.walk(collect)
    return operations


def _set_mesh(module: Any, mesh: MeshSizes) -> None:
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh":
            axes = ", ".join(f'"{name}"={size}' for name, size in mesh)
            op.attributes["mesh"] = ir.Attribute.parse(f"#sdy.mesh<[{axes}]>")
