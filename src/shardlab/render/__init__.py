"""Drawing primitives: pictures, sheets, terminal text, SVG, HTML, Markdown; no records."""
