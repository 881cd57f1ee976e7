"""Plans in processes of their own, with a time limit."""
