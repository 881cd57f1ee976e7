"""Named strategies: what array axes mean, and what is cut over which mesh axes."""
