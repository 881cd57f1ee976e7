def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    # A pass is always n - 1 steps: no device sends to itself. Only the bytes per step differ.
    steps = n - 1
    if op == "all_gather":
        return float(steps * n_bytes)  # the full operand: every shard visits every device
    if op == "all_reduce":
        return 2 * steps * n_bytes / n  # a reduce-scatter, then an all-gather of its result
    return steps * n_bytes / n  # one n-th of the operand to every other device
