"""Findings about a program or a plan: what, where, how to fix it; and reports of them."""
