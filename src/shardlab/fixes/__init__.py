"""Candidate edits of a program's source, one file per family: text in, text out, no JAX.

Nothing here decides whether an edit is right; `analysis.fix_proof` runs the edited program.
"""
