"""Grading: compares a run with the expected result. Pure: runs nothing, loads nothing."""
