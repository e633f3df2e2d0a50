"""Reports in a browser, at the widths of a phone, a tablet and a desktop, light and dark."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import calibscale
from calibscale.output.report import save_report
from tests.support.browser import requests, visit
from tests.support.report_results import HOSTILE, command_results, night, rows

MIN_TEXT = 8.0  # CSS px, smallest text of a plot on a phone


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """URLs of report files."""
    folder = tmp_path_factory.mktemp("reports")
    script, math_, quotes, *_ = HOSTILE
    hostile = night(
        days=4, groups=2, size=100, drift_from=2, names=(script, "m" * 120 + quotes, math_)
    )
    hostile["notes"] = [markup * 20 for markup in HOSTILE]
    reports = {
        "night": [night()],
        "hostile": [hostile],
        "commands": list(command_results().values()),
        "several": [command_results()[kind] for kind in ("evaluation", "ranking")],
        "evaluation": [command_results()["evaluation"]],
    }
    for name, results in reports.items():
        save_report(results, folder / f"{name}.html")
    icon, names = '<link rel="icon" href="data:,">', (HOSTILE[0], "age")
    cells = [calibscale.evaluate(rows(), interval=True), calibscale.reliability(rows(names=names))]
    page = icon + "".join(cell._repr_html_() for cell in cells)
    (folder / "notebook.html").write_text(page, "utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in (*reports, "notebook")}


PLOTS = """
return [...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const letters = [...svg.querySelectorAll("text")].map(t => {
    const scale = t.getScreenCTM();
    const place = t.getBoundingClientRect();
    return {size: parseFloat(getComputedStyle(t).fontSize) * Math.hypot(scale.a, scale.b),
            left: place.left - box.left, right: place.right - box.right, text: t.textContent,
            place};
  });
  const over = letters.flatMap((a, i) => letters.slice(0, i).filter(b =>
    Math.min(a.place.right, b.place.right) - Math.max(a.place.left, b.place.left) > 1 &&
    Math.min(a.place.bottom, b.place.bottom) - Math.max(a.place.top, b.place.top) > 4
  ).map(b => [a.text, b.text]));
  return {name: svg.getAttribute("aria-label"), width: box.width, height: box.height,
          over, marks: svg.querySelectorAll("path").length, letters};
});
"""


@pytest.mark.parametrize("name", ["night", "hostile", "commands", "several", "notebook"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_report__fits_the_window_and_loads_nothing(
    browser: Any, pages: dict[str, str], width: int, scheme: str, name: str
) -> None:
    visit(browser, pages[name], width, scheme)
    assert browser.get_log("browser") == []
    assert [url for url in requests(browser) if not url.startswith("data:")] == [pages[name]]
    wide, inner = browser.execute_script(
        "return [document.scrollingElement.scrollWidth, innerWidth]"
    )
    assert inner == width
    assert wide <= inner
    plots = browser.execute_script(PLOTS)
    assert plots
    for plot in plots:
        assert plot["width"] > 250, plot["name"]
        assert plot["height"] > 40, plot["name"]
        assert plot["marks"] > 2, plot["name"]
        assert plot["over"] == [], plot["name"]  # overlapping texts
        for letters in plot["letters"]:
            assert letters["size"] >= MIN_TEXT, letters
            assert letters["left"] >= -4, (plot["name"], letters)
            assert letters["right"] <= 4, (plot["name"], letters)


def test_report__open_details_do_not_widen_the_page(browser: Any, pages: dict[str, str]) -> None:
    for name in ("night", "hostile", "commands"):
        visit(browser, pages[name], 360)
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.execute_script("return document.scrollingElement.scrollWidth") <= 360


def test_report__has_sufficient_contrast_in_light_and_dark(
    browser: Any, pages: dict[str, str]
) -> None:
    """Text has a contrast of at least 4.5 with its background."""
    script = """
    return Object.fromEntries(["paper", "ink", "muted", "accent", "alert", "fine", "soft",
      "alert-soft", "fine-soft"].map(n => {
        document.body.style.color = `var(--${n})`;
        return [n, getComputedStyle(document.body).color];
    }));
    """
    for scheme in ("light", "dark"):
        visit(browser, pages["night"], 768, scheme)
        colours = browser.execute_script(script)
        pairs = [(letters, "paper") for letters in ("ink", "muted", "accent", "alert", "fine")]
        pairs += [
            ("ink", "soft"),
            ("muted", "soft"),
            ("ink", "alert-soft"),
            ("fine", "fine-soft"),
            ("alert", "alert-soft"),
        ]
        for letters, ground in pairs:
            assert contrast(colours[letters], colours[ground]) >= 4.5, (scheme, letters, ground)


def test_notebook__follows_the_theme_of_the_notebook(browser: Any, pages: dict[str, str]) -> None:
    visit(browser, pages["notebook"], 768, "light")
    for light, colour in (("true", "rgb(255, 255, 255)"), ("false", "rgb(20, 23, 27)")):
        browser.execute_script(f"document.body.setAttribute('data-jp-theme-light', '{light}')")
        shown = "return getComputedStyle(document.querySelector('.calibscale')).backgroundColor"
        assert browser.execute_script(shown) == colour


def contrast(a: str, b: str) -> float:
    """Contrast of two colours rgb(…) (WCAG 2.1)."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
        red, green, blue = (
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_report__names_from_data_are_not_executed(browser: Any, pages: dict[str, str]) -> None:
    visit(browser, pages["hostile"])
    assert browser.execute_script("return document.scripts.length") == 0
    assert HOSTILE[0] in browser.find_element("tag name", "h1").text
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('svg text')].map(t => t.textContent).join('\\n')"
    )
    assert HOSTILE[1] in drawn


def test_report__prints_on_white_with_its_parameters(
    browser: Any, pages: dict[str, str], tmp_path: Path
) -> None:
    visit(browser, pages["night"], 1280, "dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    style = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(style) == "rgb(255, 255, 255)"
    hidden = "return document.querySelector('details.numbers').getBoundingClientRect().height"
    assert browser.execute_script(hidden) == 0
    cut = """
    return [...document.querySelectorAll("figure")].map(f => getComputedStyle(f).breakInside);
    """
    assert set(browser.execute_script(cut)) == {"avoid"}
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    path = tmp_path / "report.pdf"
    path.write_bytes(base64.b64decode(printed["data"]))
    assert path.read_bytes().startswith(b"%PDF")
    assert path.stat().st_size > 20_000


CUT = """
return [...document.querySelectorAll(".scroll")].filter(
  area => !area.closest("details:not([open])") && area.scrollWidth > area.clientWidth + 1
).map(area => area.getAttribute("aria-label"));
"""


@pytest.mark.parametrize("name", ["night", "commands"])
def test_report__tables_are_not_cut(browser: Any, pages: dict[str, str], name: str) -> None:
    """Tables fit the page on a desktop and on a phone."""
    for width in (400, 1280):
        visit(browser, pages[name], width)
        assert browser.execute_script(CUT) == []


def test_report__has_the_table_beside_the_diagram(browser: Any, pages: dict[str, str]) -> None:
    """The right half of a page is not empty beside the first diagram."""
    script = """
    const figure = document.querySelector(".s-estimates figure, .s-reliability figure");
    const table = figure.closest(".blocks").querySelector(":scope > .table");
    return [figure, table].map(one => one.getBoundingClientRect()).map(
      box => [box.left, box.right, box.top, box.bottom]);
    """
    visit(browser, pages["evaluation"], 1280)
    figure, table = browser.execute_script(script)
    assert table[0] >= figure[1]  # to the right of it
    assert table[2] < figure[3]  # and not below it
