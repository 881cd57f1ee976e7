# WA: counts an all-reduce as one pass around the ring; it takes two
def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    steps = n - 1
    if op == "all_gather":
        return float(steps * n_bytes)
    if op == "all_reduce":
        return steps * n_bytes / n
    return steps * n_bytes / n
