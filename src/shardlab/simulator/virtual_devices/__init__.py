"""The devices, backend and arrays that JAX gets in simulated mode."""
