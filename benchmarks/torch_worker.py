"""The MLP step and the matmuls in PyTorch's LocalTensor: every rank in one process.

Written as PyTorch programs for many ranks are: a DeviceMesh, autograd, `all_reduce`, `all_gather`.
Runs in an environment of its own (see `torch_environment`), which has no JAX, so it reads its
inputs from a file. `rank_map` is LocalTensor's own way to give each rank another value; the ring
passes its rows on with it, which costs PyTorch less than a send and a receive would.
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


class Ranks:
    """The mesh and the mode in which plain PyTorch operations run on every rank."""

    def __init__(self, mesh: dict[str, int]) -> None:
        self.shape = tuple(mesh.values())
        self.n = int(np.prod(self.shape))
        dist.init_process_group("fake", rank=0, world_size=self.n)
        self.mode = LocalTensorMode(self.n)
        with self.mode:
            self.mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=tuple(mesh))

    def coordinate(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(rank, self.shape))

    def cut(self, array: np.ndarray[Any, Any], axes: dict[int, int]) -> Any:
        """Give each rank its slice: `axes` maps array axis to mesh dimension."""

        def piece(rank: int) -> Any:
            where = [slice(None)] * array.ndim
            for axis, dimension in axes.items():
                size = array.shape[axis] // self.shape[dimension]
                start = self.coordinate(rank)[dimension] * size
                where[axis] = slice(start, start + size)
            return torch.from_numpy(array[tuple(where)].copy())

        return self.mode.rank_map(piece)

    def join(self, value: LocalTensor, axis: int, dimension: int) -> Any:
        """Put the slices along one mesh dimension together, taking the first of all others."""
        first = [0] * len(self.shape)
        pieces = []
        for i in range(self.shape[dimension]):
            first[dimension] = i
            rank = int(np.ravel_multi_index(first, self.shape))
            pieces.append(value._local_tensors[rank].detach().numpy())
        return np.concatenate(pieces, axis)


# ------------------------------------------------------------------------------------ programs


def mlp(ranks: Ranks, inputs: Inputs) -> tuple[Callable[[], Any], Callable[[Any], list[Any]]]:
    data, model = ranks.mesh.get_group("data"), ranks.mesh.get_group("model")

    class AddUp(torch.autograd.Function):
        """A psum over `model` whose result is the same on all of it, so gradients pass as is."""

        @staticmethod
        def forward(_: Any, partial: Any) -> Any:
            total = partial.clone()
            dist.all_reduce(total, group=model)
            return total

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient

    where = {"down": {0: 1}, "down_bias": {}, "up": {1: 1}, "up_bias": {0: 1}}
    params = {name: ranks.cut(inputs[name], axes) for name, axes in where.items()}
    x, y = (ranks.cut(inputs[name], {0: 0}) for name in ("x", "y"))

    def step() -> Any:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        hidden = torch.relu(x @ leaves["up"] + leaves["up_bias"])
        out = AddUp.apply(hidden @ leaves["down"]) + leaves["down_bias"]
        loss = ((out - y) ** 2).mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        loss = loss.detach()
        for value in (loss, *grads):
            dist.all_reduce(value, op=dist.ReduceOp.AVG, group=data)
        new = {name: params[name] - 0.1 * g for name, g in zip(leaves, grads, strict=True)}
        return loss, new

    def whole(result: Any) -> list[Any]:
        loss, new = result
        first = [value._local_tensors[0].numpy() for value in (loss, new["down_bias"])]
        down, up, bias = (
            ranks.join(new[name], axis, 1)
            for name, axis in (("down", 0), ("up", 1), ("up_bias", 0))
        )
        return [first[0], down, first[1], up, bias]

    return step, whole


def gather(ranks: Ranks, inputs: Inputs) -> tuple[Callable[[], Any], Callable[[Any], list[Any]]]:
    a, b = (ranks.cut(inputs[name], {0: 0}) for name in ("a", "b"))

    def step() -> Any:
        whole = torch.empty(inputs["b"].shape)
        dist.all_gather_into_tensor(whole, b)
        return a @ whole

    return step, lambda result: [ranks.join(result, 0, 0)]


def ring(ranks: Ranks, inputs: Inputs) -> tuple[Callable[[], Any], Callable[[Any], list[Any]]]:
    a, b = (ranks.cut(inputs[name], {0: 0}) for name in ("a", "b"))
    n = ranks.n
    width = inputs["b"].shape[0] // n

    def columns(i: int) -> Any:
        def mine(rank: int) -> Any:
            return a._local_tensors[rank].narrow(1, (rank - i) % n * width, width)

        return ranks.mode.rank_map(mine)

    def step() -> Any:
        rows, total = b, torch.zeros(inputs["a"].shape[0] // n, inputs["b"].shape[1])
        for i in range(n):
            total = total + columns(i) @ rows
            held = rows._local_tensors
            rows = ranks.mode.rank_map(lambda rank, held=held: held[(rank - 1) % n].clone())
        return total

    return step, lambda result: [ranks.join(result, 0, 0)]


_PROGRAMS = {"mlp": mlp, "gather": gather, "ring": ring}


class TorchWorker(worker.Worker):
    def __init__(self, program: str, mesh: dict[str, int], inputs: str) -> None:
        with np.load(inputs) as stored:
            arrays = {name: stored[name] for name in stored.files}
        self.ranks = Ranks(mesh)
        self.step, self.whole = _PROGRAMS[program](self.ranks, arrays)

    def call(self) -> Any:
        with self.ranks.mode:
            return self.step()

    def leaves(self) -> list[Any]:
        return self.whole(self.result)


if __name__ == "__main__":
    worker.main(TorchWorker)
