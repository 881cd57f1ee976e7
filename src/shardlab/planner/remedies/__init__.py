"""Remedies: changes that make a plan fit, each verified by planning again."""
