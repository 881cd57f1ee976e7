"""Processes for another person's code: confined, limited, and never trusted. No JAX, no numpy."""
