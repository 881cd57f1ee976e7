"""The collectives that Shardy's passes insert into a program with its own shardings.

The passes are those that `shardy_program.py` runs for autoshard, in this process: no compiler, and
no devices of any number.
"""

from __future__ import annotations

from typing import Any

from jax._src.lib.mlir import ir, passmanager  # runs Shardy's passes
from jax._src.lib.mlir.dialects import sdy  # Shardy's meshes

from shardlab._jax.call_inlining import inline_calls
from shardlab._jax.partitioned_program import PartitionedProgram
from shardlab._jax.partitioned_reader import PartitionedReader
from shardlab._jax.partitioner import replace_ops_as_xla_does
from shardlab._jax.partitioner_rewrites import (
    add_before_reducing,
    merge_equal_collectives,
    reduce_by_dimension,
    reshard_products,
)
from shardlab._jax.sharding_inspection import remove_inspections
from shardlab._jax.shardy_program import PartitioningFailed, find_main

_PROPAGATION = (
    "builtin.module(sdy-propagation-pipeline,func.func(sdy-sharding-constraint-to-reshard))"
)
_RESHARDING = (
    "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives))"
)


def partition_lowered(lowered: Any) -> PartitionedProgram:
    """Return what Shardy's passes make of a `jax.stages.Lowered`.

    Collectives inside of a shard_map are the program's own and not included. Raises
    `PartitioningFailed`, also if an axis of one name has different sizes in two meshes.
    """
    module = remove_inspections(lowered._lowering.stablehlo())
    with module.context as context:
        context.enable_multithreading(False)
        operation = module.operation.clone()
        try:
            inline_calls(operation)
            replace_ops_as_xla_does(operation)
            passmanager.PassManager.parse(_PROPAGATION).run(operation)
            reshard_products(operation)
            passmanager.PassManager.parse(_RESHARDING).run(operation)
        except ir.MLIRError as error:
            raise PartitioningFailed(str(error)) from error
        main = find_main(operation)
        merge_equal_collectives(main.regions[0].blocks[0])
        add_before_reducing(operation)
        reduce_by_dimension(operation)
        reader = PartitionedReader(_axis_sizes(operation))
        return reader.read(main, frozenset())


def _axis_sizes(module: Any) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for op in module.regions[0].blocks[0].operations:
        if isinstance(op, sdy.MeshOp):
            for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(op.mesh).axes):
                if sizes.setdefault(axis.name, axis.size) != axis.size:
                    raise PartitioningFailed(f"Two meshes have an axis '{axis.name}'.")
    return sizes
