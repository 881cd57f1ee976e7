"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

NAMES = ("bias", "down", "embed", "head", "key", "norm", "query", "scale", "up", "value", "w")


def inputs(draw):
    rng = draw.rng
    specs = draw_specs(draw, *draw.mesh.axis_names[:2])
    grads = {}
    for name, spec in specs.items():
        # Each sharded dimension is divisible by the shards along it.
        shape = [draw_size(draw, axes) for axes in spec.axes] or [2 + draw.scale]
        grad = draw.numbers(*shape)
        # Replicated ones are large, so that counting them once per device changes the norm visibly.
        grad += 0 if any(spec) else np.copysign(5, grad)
        grads[name] = grad
    if draw.number == 3 and draw.scale > 1:
        # A leaf without dimensions: the temperature of a softmax, or a learned scale.
        grads["temperature"] = np.float32(rng.choice([-7, 7]))
        specs["temperature"] = Spec()
    # From norms near 1e-4, which an epsilon changes, to norms near 1e4: the square of a norm below
    # 1 is smaller, that of any other is larger. A power of two, so that no element is rounded.
    exponent = {1: -3.6, 4: -3.6, 5: -3.6, 6: 3.6, 9: 1.0}.get(draw.number, rng.uniform(-3.6, 3.6))
    magnitude = 2.0 ** np.round(np.log2(10**exponent / global_norm(grads)))
    grads = {name: np.asarray(magnitude * grad, np.float32) for name, grad in grads.items()}
    # At random, above the norm (unchanged), below it, far below it, near it, or too large to
    # matter; one case of each kind on several devices is certain.
    kinds = ("below", "just below", "just above", "above", "huge")
    fixed_kinds = {
        1: "just below",
        3: "below",
        4: "far below",
        5: "above",
        6: "just below",
        7: "just above",
    }
    kind = fixed_kinds.get(draw.number, "below" if draw.number == 9 else kinds[rng.integers(5)])
    ratio = {
        "far below": 10 ** rng.uniform(-4, -3),
        "below": rng.uniform(0.1, 0.9),
        "just below": 0.9995,
        "just above": 1.0005,
        "above": rng.uniform(1.1, 3),
        "huge": 1e6,
    }[kind]
    max_norm = float(f"{ratio * global_norm(grads):.6g}")
    return {"grads": grads, "specs": specs, "max_norm": max_norm}


def draw_specs(draw, a, b):
    """Return a spec for each gradient: sharded over no mesh axis, over one, over both."""
    rng = draw.rng
    entries = [
        (),
        [(a,), (None, a), (a, None)][rng.integers(3)],
        [(b,), (None, b), (b, None)][rng.integers(3)],
        [(a, b), (b, a), ((a, b),), (None, (b, a))][rng.integers(4)],
    ]
    # Now and then one more that is replicated, or sharded.
    entries += [[], [(None, None)], [(None, b)]][rng.integers(3)]
    # A third dimension that is sharded; one leaf alone; and more leaves than usual.
    if draw.number in (4, 5) and draw.scale > 1:
        entries.append((None, None, b if draw.number == 4 else a))
    if draw.number == 2 and draw.scale > 1:
        entries = [[(a, b), (b, a), ((a, b),)][rng.integers(3)]]
    if draw.number == 3 and draw.scale > 1:
        entries = (3 * entries)[: len(NAMES)]  # every name, and all of them are clipped
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
