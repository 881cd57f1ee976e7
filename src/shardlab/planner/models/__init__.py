"""Where a model's tensors come from: each source gives a `Model`."""
