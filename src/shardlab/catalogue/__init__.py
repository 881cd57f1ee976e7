"""Reads problem folders and checks them. The content itself is in `problems/`."""
