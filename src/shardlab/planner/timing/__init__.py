"""The time of a step: its operations, its collectives, and the schedule of both."""
