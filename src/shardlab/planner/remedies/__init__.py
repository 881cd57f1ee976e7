"""Changes that would make a plan fit, really tried."""
