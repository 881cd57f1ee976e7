"""Exercises and a person: their file, their attempts, what opens next. No terminal, no page."""
