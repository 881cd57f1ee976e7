"""Proofs of shardings: by XLA's partitioner, on host devices, and by the compiler's memory."""
