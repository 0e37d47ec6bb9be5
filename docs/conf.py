"""Sphinx configuration: `make docs` builds with every warning an error."""

# ruff: noqa: INP001

project = "memsheet"
author = "The memsheet authors"
project_copyright = "2026, The memsheet authors"

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "memsheet"
