"""One collective call of a program, the bytes it sends, and its steps on a ring."""
