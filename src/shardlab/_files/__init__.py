"""Reading files that somebody else wrote, within limits, and writing ours atomically."""
