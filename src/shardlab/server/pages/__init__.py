"""The HTML pages: one module per page, each with one frozen context dataclass."""
