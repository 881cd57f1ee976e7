"""Reads files of unknown origin within limits, and writes ours atomically."""
