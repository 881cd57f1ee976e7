"""Sphinx configuration: `make docs` builds the site into build/docs."""

from shardlab import __version__

project = "shardlab"
author = "shardlab developers"
copyright = "shardlab developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["conf.py"]
default_role = "code"  # docstrings write `name` for code
myst_heading_anchors = 3  # links to sections work as on code hosts
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"shardlab {version}"
