"""Finds shardings of a jit program: candidates judged by Shardy's passes and timed on hardware."""
