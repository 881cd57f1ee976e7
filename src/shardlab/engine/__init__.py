"""Runs programs: the only room that imports JAX."""
