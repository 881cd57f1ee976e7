"""What communication costs: bytes on the wire, and time on named hardware. Arithmetic only."""
