"""The worker for PyTorch's LocalTensor: the MLP step and the matmuls, every rank in one process.

Written as PyTorch programs for many ranks are: a DeviceMesh, autograd, `all_reduce`, `all_gather`.
Runs in its own environment, without JAX. `rank_map` is LocalTensor's way to give each rank a
different value; the ring sends its rows with it, which costs PyTorch less than a send and a
receive would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh

from benchmarks import worker

Inputs = dict[str, np.ndarray[Any, Any]]
# A step, and a function that turns its result into unsharded arrays.
Program = tuple[Callable[[], Any], Callable[[Any], list[Any]]]


class Ranks:
    """The device mesh, and the mode in which PyTorch operations run on every rank."""

    def __init__(self, mesh: dict[str, int]) -> None:
        self.shape = tuple(mesh.values())
        self.n = int(np.prod(self.shape))
        # The fake backend sends nothing; LocalTensorMode computes the collectives itself.
        dist.init_process_group("fake", rank=0, world_size=self.n)
        self.mode = LocalTensorMode(self.n)
        with self.mode:
            self.mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=tuple(mesh))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(rank, self.shape))

    def shard_array(self, array: np.ndarray[Any, Any], mesh_dims: dict[int, int]) -> Any:
        """Give each rank its shard; `mesh_dims` maps array dimensions to mesh dimensions."""

        def make_shard(rank: int) -> Any:
            index = [slice(None)] * array.ndim
            for dim, mesh_dim in mesh_dims.items():
                size = array.shape[dim] // self.shape[mesh_dim]
                start = self.coordinates(rank)[mesh_dim] * size
                index[dim] = slice(start, start + size)
            return torch.from_numpy(array[tuple(index)].copy())

        return self.mode.rank_map(make_shard)

    def gather_array(self, value: LocalTensor, dim: int, mesh_dim: int) -> Any:
        """Concatenate the shards along one mesh dimension, from the first rank of all others."""
        coordinates = [0] * len(self.shape)
        shards = []
        for i in range(self.shape[mesh_dim]):
            coordinates[mesh_dim] = i
            rank = int(np.ravel_multi_index(coordinates, self.shape))
            shards.append(value._local_tensors[rank].detach().numpy())
        return np.concatenate(shards, dim)


# ------------------------------------------------------------------------------------ programs


def make_mlp(ranks: Ranks, inputs: Inputs) -> Program:
    data, model = ranks.mesh.get_group("data"), ranks.mesh.get_group("model")

    class AllReduce(torch.autograd.Function):
        """An all-reduce over `model`. Its result is replicated, so its gradient is the identity."""

        @staticmethod
        def forward(_: Any, partial: Any) -> Any:
            total = partial.clone()
            dist.all_reduce(total, group=model)
            return total

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient

    mesh_dims = {"down": {0: 1}, "down_bias": {}, "up": {1: 1}, "up_bias": {0: 1}}
    params = {name: ranks.shard_array(inputs[name], dims) for name, dims in mesh_dims.items()}
    x, y = (ranks.shard_array(inputs[name], {0: 0}) for name in ("x", "y"))

    def train_step() -> Any:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        hidden = torch.relu(x @ leaves["up"] + leaves["up_bias"])
        out = AllReduce.apply(hidden @ leaves["down"]) + leaves["down_bias"]
        loss = ((out - y) ** 2).mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        loss = loss.detach()
        for value in (loss, *grads):
            dist.all_reduce(value, op=dist.ReduceOp.AVG, group=data)
        new_params = {name: params[name] - 0.1 * g for name, g in zip(leaves, grads, strict=True)}
        return loss, new_params

    def unsharded_arrays(result: Any) -> list[Any]:
        loss, new_params = result
        replicated = (loss, new_params["down_bias"])
        loss, down_bias = (value._local_tensors[0].numpy() for value in replicated)
        down, up, up_bias = (
            ranks.gather_array(new_params[name], dim, 1)
            for name, dim in (("down", 0), ("up", 1), ("up_bias", 0))
        )
        return [loss, down, down_bias, up, up_bias]  # jax.tree.leaves sorts the keys of a dict

    return train_step, unsharded_arrays


def make_all_gather_matmul(ranks: Ranks, inputs: Inputs) -> Program:
    a, b = (ranks.shard_array(inputs[name], {0: 0}) for name in ("a", "b"))

    def multiply() -> Any:
        full_b = torch.empty(inputs["b"].shape)
        dist.all_gather_into_tensor(full_b, b)
        return a @ full_b

    return multiply, lambda result: [ranks.gather_array(result, 0, 0)]


def make_ring_matmul(ranks: Ranks, inputs: Inputs) -> Program:
    a, b = (ranks.shard_array(inputs[name], {0: 0}) for name in ("a", "b"))
    n = ranks.n
    width = inputs["b"].shape[0] // n

    def select_columns(i: int) -> Any:
        def columns_of_rank(rank: int) -> Any:
            return a._local_tensors[rank].narrow(1, (rank - i) % n * width, width)

        return ranks.mode.rank_map(columns_of_rank)

    def multiply() -> Any:
        rows, total = b, torch.zeros(inputs["a"].shape[0] // n, inputs["b"].shape[1])
        for i in range(n):
            total = total + select_columns(i) @ rows
            shards = rows._local_tensors
            # clone(): a send copies, and rows that share memory would make the ring look cheaper.
            rows = ranks.mode.rank_map(lambda rank, shards=shards: shards[(rank - 1) % n].clone())
        return total

    return multiply, lambda result: [ranks.gather_array(result, 0, 0)]


_PROGRAMS = {"mlp": make_mlp, "gather": make_all_gather_matmul, "ring": make_ring_matmul}


class TorchWorker(worker.Worker):
    """One program under LocalTensor, with its inputs sharded over the ranks."""

    def __init__(self, program: str, mesh: dict[str, int], inputs: str) -> None:
        with np.load(inputs) as stored:
            arrays = {name: stored[name] for name in stored.files}
        self.ranks = Ranks(mesh)
        self.step, self.unsharded_arrays = _PROGRAMS[program](self.ranks, arrays)

    def run_program(self) -> Any:
        with self.ranks.mode:
            return self.step()

    def result_arrays(self) -> list[Any]:
        return self.unsharded_arrays(self.result)


if __name__ == "__main__":
    worker.serve_requests(TorchWorker)
