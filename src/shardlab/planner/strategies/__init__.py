"""Named strategies: what dimensions are for, and which mesh axes shard them."""
