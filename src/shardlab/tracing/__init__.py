"""Traces a program: its collectives, FLOPs, memory and patterns. Runs nothing."""
