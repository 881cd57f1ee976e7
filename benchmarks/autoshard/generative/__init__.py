"""Models that draw samples: diffusion and variational."""
