# WA: treats the operand of an all-gather as its result
def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    steps = n - 1
    if op == "all_reduce":
        return 2 * steps * n_bytes / n
    return steps * n_bytes / n
