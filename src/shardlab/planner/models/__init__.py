"""Sources of models: presets, weights on disk, checkpoints, tables, and JAX objects."""
