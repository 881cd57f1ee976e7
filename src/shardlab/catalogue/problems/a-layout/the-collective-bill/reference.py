"""Draw inputs from a seed and compute the expected result in plain NumPy."""

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def inputs(draw):
    op = _OPS[draw.number % 4]
    # Each operation on a power of two, on one device, and on a count that is not a power of two.
    n = ((4, 2, 8, 16), (1, 1, 1, 1), (3, 6, 5, 12))[draw.number // 4 % 3][draw.number % 4]
    return {"op": op, "n_bytes": n * 4 * int(draw.rng.integers(2, 50 * draw.scale)), "n": n}


def expected(mesh, op, n_bytes, n):
    if op == "all_gather":
        return float((n - 1) * n_bytes)
    passes = 2 if op == "all_reduce" else 1
    return passes * (n - 1) * n_bytes / n
