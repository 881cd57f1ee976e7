"""Programs run twice, on 8 real host devices and in simulated mode, with equal results."""
