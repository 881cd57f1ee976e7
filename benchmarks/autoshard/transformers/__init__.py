"""Attention over one or two sequences, with its variants."""
