"""The search over meshes and strategies, and how candidates are ranked."""
