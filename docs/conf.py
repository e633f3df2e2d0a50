"""Settings of the documentation, which `tox -e docs` builds with Sphinx."""

import importlib.metadata
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import calibscale

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ |= {"MPLBACKEND": "agg", "COLUMNS": "92"}  # executed pages draw, and print tables

project, author = "calibscale", "the calibscale developers"
version = release = calibscale.__version__
extensions = [
    "myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_click",
    "sphinx_design", "sphinx_gallery.gen_gallery", "executed_blocks", "generated_tables",
    "mathml",
]  # fmt: skip
exclude_patterns = ["**/GALLERY_HEADER.rst"]
exclude_patterns += [f"generated/{pages}/index.rst" for pages in ("guides", "start")]
templates_path = ["_templates"]
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"  # docstrings name types
numpydoc_show_class_members = False

has_s3 = find_spec("moto") and find_spec("s3fs") and importlib.metadata.version("s3fs") > "2024"
skipped = ["pytorch"] * (not find_spec("torch")) + ["object_stores"] * (not has_s3)
sphinx_gallery_conf = {
    "examples_dirs": ["start", "guides", "gallery"],
    "gallery_dirs": ["generated/start", "generated/guides", "generated/gallery"],
    # pages are executed where their packages are installed
    "filename_pattern": rf"/(?!{'|'.join(skipped) or '-'})\w+\.py$",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,  # a page with scripts of another host
}

html_theme, html_title = "pydata_sphinx_theme", "calibscale"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
}
html_sidebars = {"changelog": [], "conventions": [], "papers": [], "benchmarks": []}


def _escape(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list):
    """Let |x| and *x in formulas of docstrings be text, outside of code."""
    special = re.compile(r"(?<!\\)\|(?=\S)|(?<=\S)\||\*\*?(?=[a-z]+[ ,:])")
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``|`.*?`)", line)
            parts[::2] = [special.sub(r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def _escape_options(_app: object, _context: object, lines: list) -> None:
    lines[:] = [re.sub(r"(?<=-)\*|(?<=\w)_(?= )", r"\\\g<0>", line) for line in lines]


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", _escape, priority=100)
    for part in ("description", "options", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _escape_options)
