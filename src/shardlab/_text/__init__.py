"""Text primitives: units, scanner, nearest names, printable text, index ranges."""
