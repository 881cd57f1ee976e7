"""Compiled programs: the text that XLA writes -> what its devices exchange. Pure, no JAX."""
