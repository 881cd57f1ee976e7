"""Feed-forward programs."""
