"""Judges submissions: draws cases, has them run in confined processes, and compares. No JAX."""
