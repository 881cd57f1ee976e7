"""Arithmetic of sharding: what each device of a mesh holds. Standard library only."""
