"""The links between the pages of a site. All are relative, so that a site works from any folder and
without a server.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote


class Link(NamedTuple):
    """A link: its text, and where it leads."""

    text: str
    href: str


_OVERVIEWS = (
    Link("Benches", "index.html"),
    Link("Trends", "trends.html"),
    Link("Compare", "compare.html"),
    Link("Nodes", "nodes.html"),
    Link("Acceptances", "acceptances.html"),
)


def address(name: str) -> str:
    """Return a file's name, without folders, as a part of an address.

    Names of folders may hold any byte, and names that a node sends any character.

    >>> address("a/b \\udcff"), address("\\ud800")
    ('a%2Fb%20%FF', '%ED%A0%80')
    """
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = name.encode("utf-8", "surrogatepass")
    return quote(data, safe="")


def links_of(page: str = "", home: str = "", above: str = "../") -> tuple[Link, ...]:
    """Return the links of a page in a folder of the site: to the overviews, and to the bench of
    this ``page`` beside others.

    ``above`` leads to the folder of the overviews, and is empty for these. ``home`` leads from
    there to the page above the site, if there is one.
    """
    first = (Link("Live", f"{above}{home}"),) if home else ()
    own = (
        (Link("This bench beside others", f"{above}compare.html#{address(page)}"),) if page else ()
    )
    return (*first, *(Link(link.text, f"{above}{link.href}") for link in _OVERVIEWS), *own)
