# WA: counts n steps around the ring, although no device sends to itself
def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    steps = n
    if op == "all_gather":
        return float(steps * n_bytes)
    if op == "all_reduce":
        return 2 * steps * n_bytes / n
    return steps * n_bytes / n
