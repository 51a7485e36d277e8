"""Settings of Sphinx: `make docs` builds this folder into build/docs."""

project = "tokentar"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "tokentar"
myst_heading_anchors = 3
autodoc_typehints = "description"  # of long signatures, which would fill the page
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
