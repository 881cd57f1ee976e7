"""The nouns that travel from the engine to checks, renderers and files: frozen, with JSON."""
