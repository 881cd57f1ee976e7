"""Plans as files: saved, read back, compared."""
