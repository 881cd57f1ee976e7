"""Saved plans, golden files, and the comparison of two plans."""
