"""Peak memory of train steps, as the TPU compiler plans it, beside the planner's estimate."""
