"""A user's program in a child process under limits."""
