"""Draw inputs from a seed and compute the expected result in plain NumPy."""

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_MAX_DEVICES, _MAX_BYTES = 1 << 14, 1 << 48


def inputs(draw):
    # Each operation on several devices, on one device, and at the upper end of what the statement
    # allows; then everything drawn.
    op = _OPS[draw.number % 4] if draw.number < 12 else str(draw.rng.choice(_OPS))
    n = int(draw.rng.integers(2, 40 * draw.scale))
    # From nothing at all to terabytes: the chunk of one device has any size, also an odd one.
    chunk_bytes = int(draw.rng.integers(1, 10 ** int(draw.rng.integers(1, 6 * draw.scale))))
    if 4 <= draw.number < 8:
        n = 1
    elif 8 <= draw.number < 12:
        n = int(draw.rng.integers(_MAX_DEVICES // 2, _MAX_DEVICES + 1))
        chunk_bytes = int(draw.rng.integers(_MAX_BYTES // 2, _MAX_BYTES + 1)) // n
    return {"op": op, "n_bytes": 0 if draw.number == 12 else n * chunk_bytes, "n": n}


def accepts(mesh, op, n_bytes, n):
    if op not in _OPS or not 1 <= n <= _MAX_DEVICES:
        return False
    return 0 <= n_bytes <= _MAX_BYTES and n_bytes % n == 0


def expected(mesh, op, n_bytes, n):
    if op == "all_gather":
        return float((n - 1) * n_bytes)
    passes = 2 if op == "all_reduce" else 1
    return passes * (n - 1) * n_bytes / n
