"""Draw inputs from a seed and check properties of the result: many masks are correct."""

import itertools

import numpy as np

from shardlab import Spec
from shardlab.judge.protocol.values import Key


def inputs(draw):
    rng = draw.rng
    rows, features, p = _draw_size_and_rate(draw)
    if draw.scale > 1:
        # Nearly all, and nearly none. There are enough elements to tell such a rate from its
        # neighbors: about 65 are kept, or about 80 dropped.
        if draw.number == 0:
            rows, features, p = 128, 256, 0.998
        elif draw.number == 1:
            rows, features, p = 64, 32, int(rng.integers(18, 25)) / 1000
        elif draw.number in (2, 9):
            p = int(rng.integers(40, 61)) / 100
    x = _draw_x(draw, rows, features)
    if draw.number == 2 and draw.scale > 1:
        x *= 2**12  # large elements are dropped as often as others
    return {"key": Key(int(rng.integers(1 << 31))), "x": x, "p": p}


def _draw_size_and_rate(draw):
    rng = draw.rng
    # At least 64 elements per device, so that two devices do not draw the same mask by chance.
    rows, features = int(rng.integers(2, 5)) * 2 * draw.scale, int(rng.integers(8, 13))
    if rng.random() < 0.2:  # one row, or one feature
        rows, features = rng.permutation([1, rows * features])
    # Any rate: now and then none or nearly all, for which most masks are equal anyway.
    kind = rng.random()
    p = 0.0 if kind < 0.1 else 0.95 if kind < 0.2 else int(rng.integers(20, 81)) / 100
    return rows, features, p


def _draw_x(draw, rows, features):
    shape = (draw.mesh.axis_sizes[0] * rows, features)
    # Never 0, so every 0 in the result is a dropped element.
    return (draw.rng.integers(1, 10, shape) * draw.rng.choice([-1, 1], shape)).astype(np.float32)


def expected(mesh, key, x, p):
    return np.zeros_like(x)  # shape and dtype only; properties() checks the values


def output_specs(mesh):
    return input_specs(mesh)["x"]


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def properties(mesh, inputs, result):
    x, p = inputs["x"], inputs["p"]
    mask = result != 0
    expected_values = np.where(mask, x / np.float32(1 - p), 0)
    if not np.allclose(result, expected_values, rtol=1e-5):
        position = tuple(map(int, np.argwhere(~np.isclose(result, expected_values, rtol=1e-5))[0]))
        return [
            f"For x{list(position)} = {x[position]:g} and p = {p}, the result is "
            f"{result[position]:.6g}; expected 0 or {x[position] / (1 - p):.6g}."
        ]
    return (
        _check_drop_rate(mask, p)
        or _find_repeated_mask(mesh, mask, p)
        or _check_independence(mesh, mask, p)
        or _check_counts(mesh, mask, p)
        or _check_positions(mesh, mask, p)
    )


def inputs_2(draw):
    rng = draw.rng
    rows, features, p = _draw_size_and_rate(draw)
    # On four devices a rate for which equal masks are no accident.
    p = int(rng.integers(40, 61)) / 100 if draw.number == 2 else p
    # Four steps, in any order: one key occurs twice, the others once. One other key has the same
    # low bits, and one is the next: adding a device's index to a key gives the key of another step.
    seed = int(rng.integers(1 << 30))
    keys = [Key(seed), Key(seed + (1 << int(rng.integers(16, 30)))), Key(seed + 1)]
    steps = [*keys, keys[0]]
    steps = [steps[number] for number in rng.permutation(len(steps))]
    return {"keys": tuple(steps), "x": _draw_x(draw, rows, features), "p": p}


def expected_2(mesh, keys, x, p):
    return [expected(mesh, key, x, p) for key in keys]


output_specs_2, input_specs_2 = output_specs, input_specs


def properties_2(mesh, inputs, result):
    for step in result:
        if violations := properties(mesh, inputs, step):
            return violations
    keys, masks = inputs["keys"], [step != 0 for step in result]
    for i, j in itertools.combinations(range(len(keys)), 2):
        is_same_mask = np.array_equal(masks[i], masks[j])
        if keys[i] == keys[j] and not is_same_mask:
            return [f"keys[{i}] and keys[{j}] are the same key, but give different masks."]
        if keys[i] != keys[j] and is_same_mask and _is_unlikely(inputs["p"], masks[i].size):
            return [f"keys[{i}] and keys[{j}] are different keys, but give the same mask."]
        pair = _find_shared_mask(mesh, masks[i], masks[j], inputs["p"])
        if keys[i] != keys[j] and pair:
            return [
                f"Shard {pair[0]} with keys[{i}] and shard {pair[1]} with keys[{j}] have the same "
                "mask, but the keys are different."
            ]
    return []


def _find_shared_mask(mesh, mask, other_mask, p):
    """Return two shards, one of each mask, that are equal; None if there are none."""
    shards, other_shards = (np.split(step, mesh.axis_sizes[0]) for step in (mask, other_mask))
    for i, j in itertools.product(range(len(shards)), repeat=2):
        if np.array_equal(shards[i], other_shards[j]) and _is_unlikely(p, shards[i].size):
            return i, j
    return None


def _is_unlikely(p, size):
    """Return whether independent masks of this size are practically never equal."""
    return (p**2 + (1 - p) ** 2) ** size < 1e-10


def _check_drop_rate(mask, p):
    """Compare the fraction of dropped elements with p, within six standard deviations."""
    drop_rate = 1 - mask.mean()
    if abs(drop_rate - p) <= 6 * np.sqrt(p * (1 - p) / mask.size):
        return []
    return [f"{drop_rate:.0%} of {mask.size} elements were dropped; p is {p}."]


def _find_repeated_mask(mesh, mask, p):
    """Report two shards along the first mesh axis that have the same mask."""
    first_shard = {}
    for shard, shard_mask in enumerate(np.split(mask, mesh.axis_sizes[0])):
        earlier_shard = first_shard.setdefault(shard_mask.tobytes(), shard)
        if earlier_shard != shard and _is_unlikely(p, shard_mask.size):
            message = (
                f"Shards {earlier_shard} and {shard} along {mesh.axis_names[0]!r} have the same "
                f"mask of {shard_mask.size} elements."
            )
            return [("same_random_numbers", message)]
    return []


def _check_independence(mesh, mask, p):
    """Report shards, rows or columns of a mask that repeat earlier ones, in part or in full."""
    shards = mask.reshape(mesh.axis_sizes[0], -1, mask.shape[1])
    chance = p**2 + (1 - p) ** 2
    for dim, noun in enumerate(("shards", "rows", "columns")):
        for distance in range(1, min(shards.shape[dim], 16)):
            later = shards.take(range(distance, shards.shape[dim]), axis=dim)
            earlier = shards.take(range(shards.shape[dim] - distance), axis=dim)
            agreement = np.mean(later == earlier)
            # Eight standard deviations: pairs share elements, so they are not quite independent.
            deviation = np.sqrt(chance * (1 - chance) / later.size)
            if later.size >= 32 and abs(agreement - chance) > 8 * deviation:
                return [
                    f"{noun.capitalize()} at a distance of {distance} agree in {agreement:.0%} of "
                    f"their elements; independent masks with p = {p} agree in {chance:.0%}."
                ]
    return []


def _check_counts(mesh, mask, p):
    """Report a mask that drops the same number of elements in every shard, or in every row."""
    for noun, groups in (("shard", mask.reshape(mesh.axis_sizes[0], -1)), ("row", mask)):
        counts = (~groups).sum(axis=1)
        deviation = np.sqrt(p * (1 - p) * groups.shape[1])
        # The most likely count has a probability of about 0.4 / deviation.
        chance = (0.4 / deviation) ** (len(counts) - 1) if deviation > 0.5 else 1
        if np.ptp(counts) == 0 and chance < 1e-7:
            return [
                f"Every {noun} has exactly {counts[0]} dropped elements; elements that are dropped "
                "independently give different numbers."
            ]
    return []


def _check_positions(mesh, mask, p):
    """Report a position that every shard keeps, or that every shard drops."""
    n = mesh.axis_sizes[0]
    shards = mask.reshape(n, -1, mask.shape[1])
    if shards[0].size * max(p, 1 - p) ** n > 1e-7:
        return []  # too few shards: this happens by chance
    constant = np.argwhere(shards.all(axis=0) | ~shards.any(axis=0))
    if not len(constant):
        return []
    position = tuple(map(int, constant[0]))
    verb = "keeps" if shards[(0, *position)] else "drops"
    return [f"Each of the {n} shards {verb} the element at {list(position)} of its rows."]
