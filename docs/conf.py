"""Settings of the documentation site, which `./dev docs` builds with Sphinx.

The site must have an entry for every name that the package exports.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pkgutil
import re
from typing import Any

from sphinx.util import logging

import farandole

project = "Farandole"
author = copyright = "The Farandole developers"
release = version = farandole.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = f"Farandole {release}"
html_show_sourcelink = False
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}

MODULES = (
    "farandole",
    "farandole.torch",
    "farandole.torch.elastic",
    "farandole.tensorflow",
    "farandole.tensorflow.elastic",
    "farandole.keras",
    "farandole.keras.callbacks",
    "farandole.keras.elastic",
    "farandole.jax",
    "farandole.jax.elastic",
)
LINK = re.compile(r"\[([^\]]+)\]\(([^):#]+)(#[^)]*)?\)")


def without_outside_links(_app: Any, page: str, source: list[str]) -> None:
    """Replace links to files outside of docs/, such as README.md, by their text. Such links work in
    the repository, but the site does not have these files."""

    def link_or_text(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), link[2]))
        return link[1] if target.startswith("..") else link[0]

    source[0] = LINK.sub(link_or_text, source[0])


def check_that_all_exports_have_entries(_app: Any, environment: Any) -> None:
    """Warn about each export that has no entry. An object that several modules export needs only
    one entry."""
    documented = []
    for name in environment.get_domain("py").objects:
        with contextlib.suppress(AttributeError):  # an attribute that only instances have
            documented.append(pkgutil.resolve_name(name))
    for module in map(pkgutil.resolve_name, MODULES):
        for name in module.__all__:
            exported = getattr(module, name)
            if not inspect.ismodule(exported) and not any(exported is one for one in documented):
                logging.getLogger(__name__).warning(
                    "%s.%s has no entry in docs/api.md", module.__name__, name
                )


def setup(app: Any) -> None:
    app.connect("env-check-consistency", check_that_all_exports_have_entries)
    app.connect("source-read", without_outside_links)
