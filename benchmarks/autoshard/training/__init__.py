"""What a train step adds to a model: optimizer states, accumulation, recomputation."""
