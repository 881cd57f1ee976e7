"""Prefill and decoding with a key-value cache."""
