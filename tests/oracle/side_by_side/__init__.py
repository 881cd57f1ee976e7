"""Programs run twice, on 8 real host devices and in simulated mode, which must say the same."""
