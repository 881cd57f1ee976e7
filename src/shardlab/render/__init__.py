"""Drawing primitives: picture, sheet, terminal text, SVG, Markdown. They know no records."""
