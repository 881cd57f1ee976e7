"""Sharding rules of users: parsing, matching, lint, and printing."""
