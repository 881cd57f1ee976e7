"""Section `autoshard`: jit programs of realistic size, sharded by search and by the usual ways."""
