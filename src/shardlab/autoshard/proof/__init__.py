"""Proofs of shardings: by XLA's partitioner, by running on host devices, and by the compiler's memory."""
