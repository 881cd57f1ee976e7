"""Evaluates the jaxpr of a shard_map with explicit device axes."""
