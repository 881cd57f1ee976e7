"""Compares what ran with what is correct. Runs nothing."""
