"""The hooks of MkDocs: pages that lie outside of docs/, the page of all commands, and anchors as
GitHub makes them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^()\s#]+)(#[^()\s]*)?\)")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}


def on_config(config: Any) -> Any:
    """Have anchors made as `tests/test_docs.py` and GitHub do: small letters, no punctuation,
    dashes for spaces.
    """
    sys.path[:0] = [
        str(REPOSITORY / "docs"),
        str(REPOSITORY),
    ]  # not at the import of this file, after which they are taken out
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug}
    return config


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere, and every file outside of docs/ that a page links to."""
    import reference

    pages = {
        REPOSITORY / "docs" / file.src_uri: file.src_uri
        for file in files
        if file.src_uri.endswith(".md")
    }
    pages |= {REPOSITORY / name: uri for name, uri in PAGES.items()}
    for name, uri in PAGES.items():
        files.append(
            File.generated(config, uri, content=(REPOSITORY / name).read_text(encoding="utf-8"))
        )
    files.append(File.generated(config, "commands.md", content=reference.markdown()))
    known = {file.src_uri for file in files}
    for page, uri in pages.items():
        for match in LINK.finditer(page.read_text(encoding="utf-8")):
            target = uri_of(uri, match[1])
            if (
                target.startswith("files/")
                and target not in known
                and (REPOSITORY / target[6:]).is_file()
            ):
                known.add(target)
                files.append(
                    File.generated(config, target, abs_src_path=str(REPOSITORY / target[6:]))
                )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to where their targets lie in the site."""
    uri = page.file.src_uri
    up = "../" * uri.count("/")
    return LINK.sub(lambda match: f"]({up}{uri_of(uri, match[1])}{match[2] or ''})", markdown)


def uri_of(page: str, link: str) -> str:
    """Return where the target of a link lies in the site. ``page``: where the page does."""
    folder = REPOSITORY if page in PAGES.values() else (REPOSITORY / "docs" / page).parent
    path = (folder / link).resolve().relative_to(REPOSITORY).as_posix()
    return PAGES.get(path) or (path[5:] if path.startswith("docs/") else f"files/{path}")
