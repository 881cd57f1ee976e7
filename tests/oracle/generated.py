"""Programs described by numbers: a description is plain JSON, so it can cross to another process.

An operation is `[name, a, b, c]`, or `[name, a, b, [operations]]` for those with a body. What the
numbers select (which value, which dimension, which mesh axes) depends on the shapes in the body as
it is traced, always modulo what is possible there, so that every description is a program.

No operation on floats has a derivative larger than about one (a sum is divided by the number of
its terms): two runtimes may differ in the order of a sum, and that difference must not grow from
one operation to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from program import Input, Program

# Larger values are reduced before they are used further.
_MAX_SIZE = 600


def build_program(description: dict[str, Any]) -> Program:
    """Return the program for a description."""
    mesh = description["mesh"]
    inputs = [_input(mesh, item) for item in description["inputs"]]
    specs = tuple(
        P(*[tuple(names) or None for names in item["spec"]]) for item in description["inputs"]
    )
    outer, inner = _manual(mesh, description["nested"])

    def build(w: Any) -> Callable[..., Any]:
        body = _Body(mesh, description)
        if not inner:
            return w.shard_map(
                body.run, in_specs=specs, out_specs=body.out_specs, check_vma=body.vma
            )
        return _nested(w, body, specs, outer, inner)

    # JAX cannot lower the gradient of a nested shard_map (see test_differences).
    floats = [item for item in inputs if "float" in item.dtype]
    return Program("generated", mesh, tuple(inputs), build, grad=bool(floats) and not inner)


def _input(mesh: dict[str, int], item: dict[str, Any]) -> Input:
    shard_counts = [math.prod(mesh[name] for name in names) for names in item["spec"]]
    shape = tuple(n * count for n, count in zip(item["local"], shard_counts, strict=True))
    return Input(shape, item["dtype"])


def _manual(mesh: dict[str, int], nested: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = tuple(mesh)
    if not nested or len(names) < 2:
        return names, ()
    first = nested % (len(names) - 1) + 1
    return names[:first], names[first:]


def _nested(w: Any, body: _Body, specs: Any, outer: Sequence[str], inner: Sequence[str]) -> Any:
    """Return the same program as two nested shard_maps, the inner one over the remaining axes."""

    def restrict_spec(spec: Any, names: Sequence[str]) -> Any:
        entries = [tuple(n for n in entry or () if n in names) or None for entry in spec]
        return P(*entries)

    def middle(*args: Any) -> Any:
        return w.shard_map(
            body.run,
            mesh=None,
            in_specs=tuple(restrict_spec(spec, inner) for spec in specs),
            out_specs=jax.tree.map(lambda spec: restrict_spec(spec, inner), body.out_specs),
            axis_names=set(inner),
            check_vma=body.vma,
        )(*args)

    return w.shard_map(
        middle,
        in_specs=tuple(restrict_spec(spec, outer) for spec in specs),
        out_specs=jax.tree.map(lambda spec: restrict_spec(spec, outer), body.out_specs),
        axis_names=set(outer),
        check_vma=body.vma,
    )


class _Body:
    """Runs the operations of a description on the values of one device."""

    def __init__(self, mesh: dict[str, int], description: dict[str, Any]) -> None:
        self.mesh = mesh
        self.names = tuple(mesh)
        self.vma = description["vma"]
        self.ops = description["ops"]
        # Each result gets a new leading dimension sharded over all mesh axes, so that the value of
        # every device is compared; and one number is replicated.
        self.out_specs = ((P(self.names),) * 3, P())

    def run(self, *args: Any) -> Any:
        values = self.steps(list(args), self.ops)[-3:]
        values = [values[i % len(values)] for i in range(3)]
        # Of squares: a sum with cancellation would leave only rounding errors to compare.
        total = sum(self.vary(1.0 + _as_float(v) ** 2).mean() for v in values)
        return tuple(self.vary(v)[None] for v in values), lax.pmean(total, self.names)

    def steps(self, values: list[Any], ops: Sequence[Any]) -> list[Any]:
        for name, *numbers in ops:
            value = values[numbers[0] % len(values)]
            if value.dtype == jnp.bfloat16 and name not in _EXACT:
                # Its roundings are coarse, and later steps are compared as float32.
                value = value.astype(jnp.float32)
            out = getattr(self, f"do_{name}")(value, values, *numbers[1:])
            while out.size > _MAX_SIZE:
                out = out.mean(0) if jnp.issubdtype(out.dtype, jnp.floating) else out[0]
            values = [*values, out]
        return values

    # ------------------------------------------------------------------------------- selecting

    def axes(self, number: int) -> tuple[str, ...]:
        """Select one or several mesh axes, in any order."""
        choices = [
            order
            for n in range(1, len(self.names) + 1)
            for order in itertools.permutations(self.names, n)
        ]
        return choices[number % len(choices)]

    def size(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh[name] for name in axes)

    def vary(self, value: Any, axes: Sequence[str] = ()) -> Any:
        """Cast to varying over `axes` (all mesh axes by default), if VMA types are checked."""
        if not self.vma:
            return value
        missing = tuple(n for n in axes or self.names if n not in _varying(value))
        return lax.pcast(value, missing, to="varying") if missing else value

    def make_divisible(self, value: Any, axis: int, n: int) -> Any:
        """Return `value` with a dimension that is divisible by `n`, repeated if it is not."""
        return value if value.shape[axis] % n == 0 else jnp.repeat(value, n, axis)

    # ----------------------------------------------------------------------------- collectives

    def do_psum(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        return _divide_float(lax.psum(self.vary(x, axes), axes), self.size(axes))

    def do_pmean(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        return lax.pmean(self.vary(_as_float(x), axes), axes)

    def do_pmax(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        reduce = lax.pmax if c % 2 else lax.pmin
        return reduce(lax.stop_gradient(self.vary(x, axes)), axes)

    def do_all_gather(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        tiled = bool(c % 2) and x.ndim > 0
        axis = c // 2 % (x.ndim if tiled else x.ndim + 1)
        return lax.all_gather(self.vary(x, axes), axes, axis=axis, tiled=tiled)

    def do_psum_scatter(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        x = self.vary(x, axes) if x.ndim else self.vary(x, axes)[None]
        axis = c // 2 % x.ndim
        x = self.make_divisible(x, axis, self.size(axes))
        if c % 2:
            out = lax.psum_scatter(x, axes, scatter_dimension=axis, tiled=True)
            return _divide_float(out, self.size(axes))
        x = x.reshape(*x.shape[:axis], self.size(axes), -1, *x.shape[axis + 1 :])
        out = lax.psum_scatter(x, axes, scatter_dimension=axis, tiled=False)
        return _divide_float(out, self.size(axes))

    def do_all_to_all(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        x = self.vary(x, axes) if x.ndim else self.vary(x, axes)[None]
        split, concat = c % x.ndim, c // 3 % x.ndim
        x = self.make_divisible(x, split, self.size(axes))
        return lax.all_to_all(x, axes, split, concat, tiled=True)

    def do_ppermute(self, x: Any, values: Any, b: int, c: int) -> Any:
        # In mesh order: JAX 0.12 rejects any other.
        axes = tuple(n for n in self.names if n in self.axes(b))
        n = self.size(axes)
        pairs = [(i, (i * (1 if c % 2 else n - 1) + c) % n) for i in range(n - c % 3 % n)]
        return lax.ppermute(self.vary(x, axes), axes, pairs)

    def do_groups(self, x: Any, values: Any, b: int, c: int) -> Any:
        """A collective in groups; with types, JAX does not have them."""
        (name,) = self.axes(b % len(self.names))
        n = self.mesh[name]
        if self.vma or n % 2:
            return self.do_psum(x, values, b, c)
        order = [(i * (n - 1) + c) % n for i in range(n)]
        groups = [order[i : i + n // 2] for i in (0, n // 2)]
        x = x if x.ndim else x[None]
        if c % 3 == 0:
            return _divide_float(lax.psum(lax.stop_gradient(x), name, axis_index_groups=groups), n)
        if c % 3 == 1:
            return lax.all_gather(x, name, axis=c % x.ndim, axis_index_groups=groups, tiled=True)
        x = self.make_divisible(x, c % x.ndim, n // 2)
        out = lax.psum_scatter(
            x, name, scatter_dimension=c % x.ndim, axis_index_groups=groups, tiled=True
        )
        return _divide_float(out, n)

    def do_axis_index(self, x: Any, values: Any, b: int, c: int) -> Any:
        axes = self.axes(b)
        return _divide_float(x * (lax.axis_index(axes).astype(x.dtype) + 1), self.size(axes))

    # ------------------------------------------------------------------------------ local steps

    def do_smooth(self, x: Any, values: Any, b: int, c: int) -> Any:
        return [jnp.sin, jnp.cos, lambda x: x * 0.5, lambda x: x / (1 + x * x)][b % 4](_as_float(x))

    def do_add(self, x: Any, values: Any, b: int, c: int) -> Any:
        y = _resize(values[b % len(values)], x.shape)
        return _divide_float(x - y.astype(x.dtype) if c % 2 else x + y.astype(x.dtype), 2)

    def do_mul(self, x: Any, values: Any, b: int, c: int) -> Any:
        y = values[b % len(values)]
        return _as_float(x) * jnp.sin(_resize(_as_float(y), x.shape if c % 2 else ()))

    def do_matmul(self, x: Any, values: Any, b: int, c: int) -> Any:
        x, y = _as_float(x), _as_float(values[b % len(values)])
        x = x.reshape(1, 1) if x.ndim == 0 else x
        axis = c % x.ndim
        y = _resize(y, (x.shape[axis], 2 + c % 2))
        out = jnp.tensordot(x, y, (axis, 0)) if c % 3 else jnp.tensordot(y, x, (0, axis))
        return jnp.sin(_divide_float(out, x.shape[axis]))

    def do_batched_matmul(self, x: Any, values: Any, b: int, c: int) -> Any:
        y = _as_float(values[b % len(values)])
        x, y = _resize(_as_float(x), (2, 3, 2 + c % 3)), _resize(y, (2, 2 + c % 3, 2))
        return jnp.sin(jnp.einsum("bij,bjk->bki" if c % 2 else "bij,bjk->ikb", x, y) / 4)

    def do_transpose(self, x: Any, values: Any, b: int, c: int) -> Any:
        orders = list(itertools.permutations(range(x.ndim)))
        return jnp.transpose(x, orders[b % len(orders)])

    def do_reshape(self, x: Any, values: Any, b: int, c: int) -> Any:
        if x.ndim > 1 and b % 2:
            axis = c % (x.ndim - 1)
            return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        for axis in range(x.ndim):
            for n in (2, 3):
                if x.shape[axis] % n == 0:
                    shape = (*x.shape[:axis], n, x.shape[axis] // n, *x.shape[axis + 1 :])
                    return x.reshape(shape)
        return x[None] if c % 2 else x[..., None]

    def do_reduce(self, x: Any, values: Any, b: int, c: int) -> Any:
        if x.ndim == 0:
            return x
        axis = c % x.ndim
        out = [jnp.sum, jnp.max, jnp.sum, jnp.min][b % 4](x, axis=axis).astype(x.dtype)
        return _divide_float(out, x.shape[axis])

    def do_broadcast(self, x: Any, values: Any, b: int, c: int) -> Any:
        shape = list(x.shape)
        shape.insert(b % (x.ndim + 1), 2)
        return jnp.broadcast_to(jnp.expand_dims(x, b % (x.ndim + 1)), shape)

    def do_concatenate(self, x: Any, values: Any, b: int, c: int) -> Any:
        x = x if x.ndim else x[None]
        y = _resize(values[b % len(values)], x.shape).astype(x.dtype)
        return jnp.concatenate([x, y], c % x.ndim)

    def do_slice(self, x: Any, values: Any, b: int, c: int) -> Any:
        if x.ndim == 0:
            return x
        axis = b % x.ndim
        return lax.rev(x, (axis,)) if c % 2 else lax.slice_in_dim(x, 0, None, 2, axis)

    def do_cumsum(self, x: Any, values: Any, b: int, c: int) -> Any:
        if x.ndim == 0:
            return x
        axis = b % x.ndim
        if c % 2:
            return _divide_float(jnp.cumsum(x, axis, dtype=x.dtype), x.shape[axis])
        return jnp.sort(x, axis)

    def do_pick(self, x: Any, values: Any, b: int, c: int) -> Any:
        """Index with something that differs between devices."""
        if x.ndim == 0:
            return x
        axis = c % x.ndim
        position = lax.axis_index(self.axes(b)) % x.shape[axis]
        return lax.dynamic_index_in_dim(
            self.vary(x, self.axes(b)), position, axis, keepdims=bool(b % 2)
        )

    # -------------------------------------------------------------------------------- nesting

    def do_scan(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        """Three steps of operations on a carry; the mean of each step comes out as well."""

        def step(carry: Any, scale: Any) -> tuple[Any, Any]:
            out = _resize(_as_float(self.steps([carry], ops)[-1]), carry.shape)
            out = self.vary(out * scale)
            return out, out.mean()

        carry = self.vary(_as_float(x))
        scales = jnp.array([0.5, 0.7, 0.9])
        carry, history = lax.scan(step, carry, scales, reverse=bool(b % 2))
        return _divide_float(carry + history.sum(), 4)

    def do_cond(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        """A branch that all devices take or none, so it can contain collectives."""
        x = _as_float(x)

        def yes(x: Any) -> Any:
            return self.vary(_resize(_as_float(self.steps([x], ops)[-1]), x.shape))

        total = lax.pmean(self.vary(x).mean(), self.names)
        return lax.cond(total > 0.05 * (b % 5 - 2), yes, lambda x: self.vary(x) * 0.5, x)

    def do_choose(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        """A branch by device number; its operations are local."""
        x = self.vary(_as_float(x))
        local = [op for op in ops if op[0] in LOCAL]

        def yes(x: Any) -> Any:
            return self.vary(_resize(_as_float(self.steps([x], local)[-1]), x.shape))

        is_even = lax.axis_index(self.axes(b)) % 2 == 0
        return lax.cond(is_even, yes, lambda x: x * 0.5, x)

    def do_repeat(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        """A loop whose trip count differs between devices; its operations are local."""
        x = lax.stop_gradient(self.vary(_as_float(x)))
        local = [op for op in ops if op[0] in LOCAL]
        n = lax.axis_index(self.axes(b)) % 3

        def step(state: Any) -> Any:
            i, x = state
            out = _resize(_as_float(self.steps([x], local)[-1]), x.shape)
            return i + 1, self.vary(out) * 0.7

        start = self.vary(jnp.int32(0))
        return lax.while_loop(lambda s: s[0] < n, step, (start, x))[1]

    def do_remat(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        wrap = jax.checkpoint if b % 2 else jax.jit
        return wrap(lambda x: self.steps([x], ops)[-1])(_as_float(x))

    def do_vmap(self, x: Any, values: Any, b: int, ops: Any) -> Any:
        x = _as_float(x)
        if x.ndim == 0:
            return x
        return jax.vmap(lambda x: self.steps([x], ops)[-1], in_axes=b % x.ndim)(x)


def _varying(x: Any) -> frozenset[str]:
    """Return the mesh axes over which JAX's type of `x` varies, in either generation."""
    aval = jax.typeof(x)
    return aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying


def _as_float(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return wide if jnp.issubdtype(x.dtype, jnp.floating) else jnp.sin(wide)


def _divide_float(x: Any, n: int) -> Any:
    """Return floats divided by `n`; integers wrap around and stay bounded anyway."""
    return x / n if x.dtype == jnp.float32 else x


def _resize(x: Any, shape: tuple[int, ...]) -> Any:
    """Return the first elements of `x` in `shape`, repeated if there are too few."""
    flat = x.reshape(-1)
    n = math.prod(shape)
    if n > flat.size:
        flat = jnp.tile(flat, -(-n // flat.size))
    return flat[:n].reshape(shape)


# ------------------------------------------------------------------------------ kinds of operations

COLLECTIVE = ("psum", "pmean", "pmax", "all_gather", "psum_scatter", "all_to_all", "ppermute")
COLLECTIVE += ("groups", "axis_index")
LOCAL = ("smooth", "add", "mul", "matmul", "batched_matmul", "transpose", "reshape", "reduce")
LOCAL += ("broadcast", "concatenate", "slice", "cumsum", "pick")
NESTING = ("scan", "cond", "choose", "repeat", "remat", "vmap")

_EXACT = {"all_gather", "all_to_all", "ppermute", "transpose", "reshape", "broadcast"}
_EXACT |= {"concatenate", "slice", "pick"}
