"""Hooks of mkdocs.yml: pages at the root of the repository, and links that leave docs/.

The same Markdown is read in the repository and on the site. A link to README.md, ARCHITECTURE.md and the like becomes one to
its page on the site, a picture is copied, and a link to source code goes to the repository, or becomes plain text where its
address (`PENSTOCK_REPO_URL`) is unknown. A link to a file that does not exist is a warning, which fails `make site`.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
PICTURES = "bench/results/*.svg"

_SOURCES = {page: source for source, page in ROOT_PAGES.items()}
_FENCED_OR_LINK = re.compile(r"^```.*?^```|(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)", re.MULTILINE | re.DOTALL)

logger = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for picture in sorted(ROOT.glob(PICTURES)):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    folder = posixpath.dirname(_SOURCES.get(here, f"docs/{here}"))

    def moved(found: re.Match[str]) -> str:
        picture, text, target, anchor = found.groups(default="")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        source = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / source).exists():
            logger.warning("%s links to %s, which does not exist", here, target)
            return found[0]
        uri = _site_uri(source, files)
        if uri is not None:
            return f"{picture}[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/{_kind(source)}/HEAD/{source}{anchor})"
        return text

    return _FENCED_OR_LINK.sub(moved, markdown)


def _site_uri(source: str, files: Files) -> str | None:
    """Where the site has this file of the repository, if it has it."""
    if source in ROOT_PAGES:
        return ROOT_PAGES[source]
    uri = source.removeprefix("docs/")
    if os.path.isdir(ROOT / source):
        uri = posixpath.join(uri, "README.md")
    return uri if files.get_file_from_path(uri) else None


def _kind(source: str) -> str:
    return "tree" if (ROOT / source).is_dir() else "blob"
