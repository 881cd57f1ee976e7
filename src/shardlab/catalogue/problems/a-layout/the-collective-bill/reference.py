"""Inputs from a seed, and the right answer in plain NumPy."""

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def inputs(draw):
    op = _OPS[draw.number % 4]
    # Every operation on 4 devices or so, on one device, and on a number that is no power of two.
    n = ((4, 2, 8, 16), (1, 1, 1, 1), (3, 6, 5, 12))[draw.number // 4 % 3][draw.number % 4]
    return {"op": op, "n_bytes": n * 4 * int(draw.rng.integers(2, 50 * draw.scale)), "n": n}


def expected(mesh, op, n_bytes, n):
    if op == "all_gather":
        return float((n - 1) * n_bytes)
    passes = 2 if op == "all_reduce" else 1
    return passes * (n - 1) * n_bytes / n
