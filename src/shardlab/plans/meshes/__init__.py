"""Meshes as plans take them: with -1, by MaxText's names, by a slice's name."""
