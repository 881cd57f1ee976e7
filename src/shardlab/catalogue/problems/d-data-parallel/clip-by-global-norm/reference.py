"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

NAMES = ("bias", "embed", "head", "norm", "scale", "w")


def inputs(draw):
    rng = draw.rng
    specs = draw_specs(rng, *draw.mesh.axis_names[:2])
    # From gradients whose norm is below 1 to large ones: the square of a norm below 1 is smaller.
    magnitude = 2.0 ** rng.choice([-6, -5, 0, 1, 2, 3])
    grads = {}
    for name, spec in specs.items():
        # Each sharded dimension is divisible by the shards along it.
        shape = [draw_size(draw, axes) for axes in spec.axes] or [2 + draw.scale]
        grad = draw.numbers(*shape)
        # Replicated ones are large, so that counting them once per device changes the norm visibly.
        grad += 0 if any(spec) else np.copysign(5, grad)
        grads[name] = np.float32(magnitude * grad)
    # At random, above the norm (unchanged), below it, or too large to matter; one case of each
    # kind on several devices is certain.
    kinds = ("below", "above", "huge")
    kind = {4: "below", 5: "above", 9: "below"}.get(draw.number, kinds[rng.integers(3)])
    ratio = {"below": rng.uniform(0.1, 0.9), "above": rng.uniform(1.1, 3), "huge": 1e6}[kind]
    max_norm = float(f"{ratio * global_norm(grads):.3g}")
    return {"grads": grads, "specs": specs, "max_norm": max_norm}


def draw_specs(rng, a, b):
    """Return a spec for each gradient: sharded over no mesh axis, over one, over both."""
    entries = [
        (),
        [(a,), (None, a), (a, None)][rng.integers(3)],
        [(b,), (None, b), (b, None)][rng.integers(3)],
        [(a, b), (b, a), ((a, b),), (None, (b, a))][rng.integers(4)],
    ]
    # Now and then one more that is replicated, or sharded.
    entries += [[], [(None, None)], [(None, b)]][rng.integers(3)]
    names = rng.permutation(NAMES)[: len(entries)]
    return {str(name): Spec(*entry) for name, entry in sorted(zip(names, entries, strict=True))}


def draw_size(draw, axes):
    n_shards = int(np.prod([draw.mesh.shape[axis] for axis in axes], dtype=int))
    return n_shards * int(draw.rng.integers(1, 2 + draw.scale))


def global_norm(grads):
    return np.sqrt(sum(np.sum(grad.astype(np.float64) ** 2) for grad in grads.values()))


def accepts(mesh, grads, specs, max_norm):
    return max_norm > 0 and global_norm(grads) > 0


def expected(mesh, grads, specs, max_norm):
    norm = global_norm(grads)
    scale = min(1.0, max_norm / norm)
    return {name: np.float32(grad * scale) for name, grad in grads.items()}, np.float32(norm)


def input_specs(mesh, grads, specs, max_norm):
    return {"grads": specs}


def output_specs(mesh, grads, specs, max_norm):
    return specs, Spec()


def budget(mesh, grads, specs, max_norm):
    # One psum of one number for each sharded leaf.
    n_sharded = sum(any(spec) for spec in specs.values())
    return {"psum": n_sharded, "payload_bytes": 4 * n_sharded}
