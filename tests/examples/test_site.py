"""Documentation: it builds without warnings, documents all names, and opens without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import calibscale
from calibscale import metrics
from tests.support import ROOT
from tests.support.browser import requests, visit

DOCS = ROOT / "docs"
KINDS = (  # a page of each kind
    "index",
    "start/command_line",
    "generated/guides/credit_groups",
    "guides/rare_events",
    "generated/guides/recalibrate_next_month",
    "concepts/verdicts",
    "concepts/mathematics",
    "conventions",
    "reference/job_file",
    "reference/command_line",
    "generated/api/calibscale.evaluate",
    "generated/gallery/index",
    "benchmarks",
    "changelog",
)
pytestmark = [
    pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside an installed wheel"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built pages. A build runs all scripts and commands of pages."""
    pytest.importorskip("sphinx", reason="needs pip install calibscale[docs]")
    place = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", DOCS, place],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return place


def test_names__have_a_page(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    pages = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]
    public = {f"generated/api/calibscale.{name}" for name in dir(calibscale)}
    public |= {f"generated/api/calibscale.metrics.{name}" for name in metrics.__all__}
    assert len(public) > 90
    # A module that needs an extra is not imported by its name.
    public.add("generated/api/calibscale.sklearn.Recalibrator")
    # Classes that other packages derive from, and protocols that their estimators may implement.
    for page in ("abilities", "checks"):
        text = (DOCS / "reference" / f"{page}.md").read_text()
        names = re.findall(r"^   (calibscale\..+)$", text, re.M)
        assert names
        public |= {f"generated/api/{name}" for name in names}
    assert {page for page in pages if page.startswith("generated/api/")} == public


def test_pages__load_nothing_from_other_hosts(site: Path) -> None:
    files = list(site.rglob("*.html"))
    assert len(files) > 120
    assets = re.compile(r"<(?:script|img|iframe|source)[^>]*src=.https?:|<link[^>]*href=.https?:")
    for file in files:
        assert not assets.search(file.read_text()), file
    for file in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:|//)", file.read_text()), file


@pytest.mark.parametrize("width", [360, 1280])
def test_pages__open_without_errors_and_fit_the_window(
    site: Path, browser: Any, width: int
) -> None:
    for kind in KINDS:
        visit(browser, (site / f"{kind}.html").as_uri(), width)
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == [], kind
        assert all(url.startswith(("file:", "data:")) for url in requests(browser)), kind
        wide = browser.execute_script("return document.scrollingElement.scrollWidth")
        assert wide <= width, kind
        broken = "return [...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert browser.execute_script(broken) == 0, kind


def test_search__finds_a_page_without_a_server(site: Path, browser: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    visit(browser, (site / "search.html").as_uri() + "?q=isotonic")
    results = "return [...document.querySelectorAll('ul.search li a')].map(a => a.href)"
    WebDriverWait(browser, 30).until(
        lambda driver: any("/concepts/" in link for link in driver.execute_script(results)),
        "no page of concepts among the results",
    )
