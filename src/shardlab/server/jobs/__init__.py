"""Work that the web process does not do itself: a durable queue and its worker processes."""
