"""Recurrence over time."""
