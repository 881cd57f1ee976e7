"""Benchmarks: the simulator against the unsharded program and against forced host devices.

Run `python -m benchmarks` (or `make bench`) from the root of the repository; `--help` lists the
options. Program sizes are fixed in `benchmarks/programs`, with their reasons. Each section has its
goals beside its measurements, and a goal that is not reached is printed as such.
"""
