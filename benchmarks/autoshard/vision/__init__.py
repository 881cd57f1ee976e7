"""Convolutions and patches of pictures."""
