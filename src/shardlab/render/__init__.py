"""Drawing primitives: pictures, sheets, terminal text, SVG, HTML, Markdown. They know no records."""
