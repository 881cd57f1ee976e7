"""Confined, limited, untrusted processes. Knows nothing of what it confines: no JAX, no NumPy."""
