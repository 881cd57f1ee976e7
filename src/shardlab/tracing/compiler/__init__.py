"""What XLA inserts for many devices, from a compile-only process."""
