"""What one device holds: parameters, states, activations, caches."""
