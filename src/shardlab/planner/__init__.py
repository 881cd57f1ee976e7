"""Whole models: where tensors come from, rules, what one device holds. Arithmetic, no JAX."""
