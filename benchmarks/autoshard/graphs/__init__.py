"""Messages along the edges of a graph."""
