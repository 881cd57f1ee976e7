"""Draw inputs from a seed and compute the expected result in plain NumPy."""

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def inputs(draw):
    # Each operation on several devices, then on one device, then everything drawn.
    op = _OPS[draw.number] if draw.number < 4 else str(draw.rng.choice(_OPS))
    n = int(draw.rng.integers(2, 40 * draw.scale))
    if draw.number in (4, 5):
        n = 1
    # From nothing at all to terabytes: the chunk of one device has any size, also an odd one.
    chunk_bytes = int(draw.rng.integers(1, 10 ** int(draw.rng.integers(1, 6 * draw.scale))))
    return {"op": op, "n_bytes": 0 if draw.number == 6 else n * chunk_bytes, "n": n}


def expected(mesh, op, n_bytes, n):
    if op == "all_gather":
        return float((n - 1) * n_bytes)
    passes = 2 if op == "all_reduce" else 1
    return passes * (n - 1) * n_bytes / n
