"""Rules that people write: reading, matching, lint, and printing them."""
