"""Findings about a program or a plan: where, what, how to fix it; reports of them."""
