"""Finds the shardings of a jit program's arguments, and proves them."""
