"""Recordings: every step of a program on every device of a virtual mesh."""
