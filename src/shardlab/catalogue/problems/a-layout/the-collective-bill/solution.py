def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    # Always n - 1 steps: nobody sends itself anything. What differs is how much travels in each.
    steps = n - 1
    if op == "all_gather":
        return float(steps * n_bytes)  # a whole operand: everybody's shard visits everybody
    if op == "all_reduce":
        return 2 * steps * n_bytes / n  # a reduce-scatter, then an all-gather of its result
    return steps * n_bytes / n  # an n-th of the operand, for every other device
