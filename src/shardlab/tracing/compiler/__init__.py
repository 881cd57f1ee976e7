"""The collectives that XLA inserts, found by compiling in a separate process."""
