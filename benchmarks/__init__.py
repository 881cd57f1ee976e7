"""How fast the simulator is, against the unsharded program and against real host devices.

Run as `python -m benchmarks` (or `make bench`) from the root of the repository; `--help` lists the
options. Sizes are fixed, with their reasons, in `benchmarks/programs`; what is to be reached stands
in `benchmarks/bars.py`, and a bar that is not reached is printed as such.
"""
