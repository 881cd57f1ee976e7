"""Decides what is wrong with a program, from what was observed of it. Never runs a program."""
