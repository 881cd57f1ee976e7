# WA: every device sends its full operand to every other device, which a ring avoids
def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    steps = n - 1
    if op == "all_gather":
        return float(steps * n_bytes)
    if op == "all_reduce":
        return float(steps * n_bytes)
    return steps * n_bytes / n
