"""Devices, backend and arrays that simulated mode gives to JAX."""
