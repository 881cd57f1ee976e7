"""Memory of one device: parameters, gradients, optimizer states, activations, KV cache."""
