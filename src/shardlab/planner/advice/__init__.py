"""Advice: the search over meshes and strategies, the step-time estimate, and the ranking."""
