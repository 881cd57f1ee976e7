"""Typed messages between the judge and its workers. Never pickle; responses are never trusted."""
