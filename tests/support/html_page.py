"""HTML pages as a browser parses them."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements and text of a well-formed page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.figures: list[set[str]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names), f"an attribute twice: {tag} {names}"
        self.tags.append((tag, dict(attributes)))
        if tag == "figure":
            self.figures.append(set())
        if "figure" in self.open:
            self.figures[-1].add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open[-1] == tag, f"</{tag}> within {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\u00a0", " ") + " "

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def plain(html: str) -> str:
    """Page without the titles of columns in cells and with ordinary spaces."""
    return re.sub(r' data-title="[^"]*"', "", html).replace("\u00a0", " ")


def checked(html: str) -> Page:
    """Parse a page and assert what holds for every report."""
    page = Page(html)
    assert "<script" not in html.lower()
    assert not re.search(r"https?://", html)
    assert not re.search(r"url\((?!#)|@import|\bsrc=", html)
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "form", "base")
        assert not [name for name in attributes if name.startswith("on")]
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:"))
    ids = Counter(a["id"] for _, a in page.tags if "id" in a)
    assert not [name for name, count in ids.items() if count > 1]
    targets = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all(target and target[1:] in ids for target in targets)
    for figure in page.figures:
        assert "svg" in figure
    assert page.count("table") >= page.count("figure")  # the numbers of each plot
    assert page.count("figure") == page.count("svg")
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    assert "nan" not in re.findall(r"[\w.]+", page.text.lower())
    assert "None" not in re.findall(r"\w+", page.text)
    return page
