"""Runs programs on virtual devices. Import the submodules: loading them loads JAX."""
