"""Decides what is wrong with a program, from what was seen of it. Never runs anything."""
