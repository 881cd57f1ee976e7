def wire_bytes(op, n_bytes, n):
    """Return the bytes that each of n devices sends in one collective."""
    # The operations are "all_gather", "reduce_scatter", "all_reduce" and "all_to_all".
    return float(n_bytes)
