"""What mkdocs is to do beside the pages of this folder: the repository's own pages and results are part of the site.

A link in a page is right in the repository first; here it is made right in the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINKED = ("bench/results/*.json", "deploy/*.*", "deploy/airflow/*.py")
_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the root of the repository, and the files that pages link to."""
    for place, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / place).read_text(encoding="utf-8")))
    for pattern in LINKED:
        for file in sorted(ROOT.glob(pattern)):
            name = file.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, content=file.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site."""
    return _LINK.sub(lambda found: f"]({_in_site(found[1], page.file.src_uri)})", markdown)


def _in_site(link: str, page: str) -> str:
    path, mark, anchor = link.partition("#")
    at_root = page in PAGES.values()
    name = path.removeprefix("docs/") if at_root else path.removeprefix("../")
    linked = any(PurePosixPath(name).match(pattern) for pattern in LINKED)
    return PAGES.get(name, name if at_root or linked else path) + mark + anchor
