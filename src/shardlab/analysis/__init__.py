"""`trace` and `check`: observe a program, then decide what is wrong with it."""
