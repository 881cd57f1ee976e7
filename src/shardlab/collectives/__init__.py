"""Collective calls as records, the bytes they send, and the ring algorithms behind the bytes."""
