"""Findings about plans: one question per module, each answered with its cost and a fix."""
