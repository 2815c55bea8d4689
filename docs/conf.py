"""Sphinx configuration of the guide and reference."""

from importlib.metadata import version as package_version

project = "paropt-hpc"
author = "The paropt-hpc developers"
copyright = "2026, the paropt-hpc developers"
version = release = package_version("paropt-hpc")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "none"  # numpydoc's sections say types with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
html_theme = "furo"
html_title = f"paropt-hpc {release}"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
