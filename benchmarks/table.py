"""python benchmarks/table.py [PAGE [RESULTS]]: rewrite the tables of docs from the JSON results."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import compare_tables
from measure import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
PAGES = DOCS / "benchmarks.md", DOCS / "conventions.md"


def peers(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["data", "tool", "seconds", "extra MB", "ECE", "exact ECE"]]
    for row in rows:
        tool = row["tool"] if row["version"] is None else f"{row['tool']} ({row['version']})"
        cells = [row["data"], tool]
        if row["seconds"] is None:
            cells += ["not installed", "", ""]
        else:
            ece = "–" if row["ece"] is None else f"{row['ece']:.3e}"
            cells += [f"{row['seconds']:.2f}", f"{row['megabytes']:.0f}", ece]
        lines.append([*cells, f"{row['exact']:.3e}"])
    return lines


def conventions(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["arrays", "package", "call", "value", "equal, `m` is `calibscale.metrics`"]]
    for row in rows:
        package = row["package"] if row["version"] is None else f"{row['package']} {row['version']}"
        value = "not installed" if row["value"] is None else f"{row['value']:.6g}"
        remark = f": {row['equal']:.6g}, not the same" if row["tolerance"] is None else ""
        lines.append([row["data"], package, f"`{row['call']}`", value, f"`{row['ours']}`{remark}"])
    return lines


def scale(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["rows", "classes", "seconds", "peak MB", "NumPy loop, CKCE and JKCE alone, seconds"]]
    for row in rows:
        loop = "–" if row["loop_seconds"] is None else f"{row['loop_seconds']:.1f}"
        cells = [f"{row['rows']:,}", str(row["classes"]), f"{row['seconds']:.1f}"]
        lines.append([*cells, f"{row['peak_mb']:.0f}", loop])
    return lines


def selection(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["selection by risk", "features", "seconds", "peak MB"]]
    for row in rows:
        rank = str(row.get("rank", "–"))
        lines.append([row["what"], rank, f"{row['seconds']:.2f}", f"{row['peak_mb']:.0f}"])
    return lines


def forecasts(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["normal forecasts", "rows", "frequencies", "seconds", "peak MB"]]
    for row in rows:
        cells = [row["what"], f"{row['rows']:,}", str(row["frequencies"])]
        lines.append([*cells, f"{row['seconds']:.1f}", f"{row['peak_mb']:.0f}"])
    return lines


def pairs(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["sums over all pairs", "rows", "10⁹ unordered pairs per second"]]
    for row in rows:
        rate = row.get("pairs_per_second")
        if rate is not None:
            lines.append([row["what"], f"{row.get('rows', 60_000):,}", f"{rate / 1e9:.2f}"])
    return lines


def levels(rows: list[dict[str, Any]]) -> list[list[str]]:
    nulls = ("labels", "wild", "residual", "permute", "hoeffding")
    lines = [["predictions", "statistic", *nulls]]
    powers = {(r["law"], r["statistic"]): r for r in rows if r["what"] == "power"}
    for row in rows:
        if row["what"] == "level":
            power = powers[row["law"], row["statistic"]]
            cells = (f"{row[n]:.1f} ({power[n]:.0f})" if n in row else "–" for n in nulls)
            lines.append([row["law"], row["statistic"], *cells])
    return lines


def nightly(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["a year of days of 10⁶ x 10", "ledger", "days", "seconds", "peak MB"]]
    for row in rows:
        seconds = statistics.median(row["seconds"])
        days = str(row.get("days", 1))
        lines.append(
            [row["what"], row["ledger"], days, f"{seconds:.2f}", f"{row['peak'] / 1e6:.0f}"]
        )
    return lines


def delays(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Median nights to the alarm, with the bets of earlier ledgers and of new ones."""
    lines = [["error", "tolerance", "rows per night", "earlier ledgers", "now", "90 % by"]]
    for row in rows:
        if row["what"] != "delay":
            continue
        nights = [
            f"above {row['longest']}" if row[key] is None else f"{row[key]:g}"
            for key in ("earlier", "now", "p90")
        ]
        tolerance = "none" if row["tolerance"] is None else f"{row['tolerance']:g}"
        lines.append([row["law"], tolerance, f"{row['rows']:,}", *nights])
    return lines


def alarms(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["predictions", "rows per night", "series", "result"]]
    for row in rows:
        if row["what"] == "delay":
            continue
        if row["what"] == "drift":
            name, count = f"temperature {row['temperature']} from night 40", row["series"]
            seen = (
                f"alarm in night {row['median']:.0f} of the drift (median; 90 % by "
                f"{row['p90']:.0f}), {row['missed']} missed, {row['before']} before it"
            )
        else:
            name, count = f"{row['what']}, {row['nights']} nights", row["years"]
            share = 100 * row["alarms"] / count
            seen = f"{share:.2f} % ever alarm (95 % band {row['low']:.2f} to {row['high']:.2f})"
            if "of_any_day" in row:
                path = 100 * row["of_any_day"] / count
                seen += f"; {path:.2f} % would if each night judged all days again"
        lines.append([name, f"{row['rows']:,}", str(count), seen])
    return lines


def markdown(lines: list[list[str]], environment: dict[str, Any]) -> str:
    head, *body = ["| " + " | ".join(cells) + " |" for cells in lines]
    rule = "|" + " --- |" * len(lines[0])
    place = f"{environment['cpu']}, {environment['cores']} cores, Python {environment['python']}."
    return "\n".join([head, rule, *body, "", place])


def rewrite(text: str, name: str, table: str) -> str:
    """Text with the part between the marks of that name replaced."""
    start, end = f"<!-- benchmark: {name} -->", "<!-- end -->"
    before, result, following = text.partition(start)
    _, closed, after = following.partition(end)
    if not (result and closed):
        raise SystemExit(f"the text has no lines {start} and {end}")
    return f"{before}{start}\n{table}\n{end}{after}"


# Benchmarks with the results of tables that have other names.
_SOURCES = {"delays": "alarms", **dict.fromkeys(compare_tables.TABLES, "compare")}


def main(page: Path, results: Path = RESULTS) -> None:
    text = page.read_text()
    tables = {
        "peers": peers,
        "conventions": conventions,
        "scale": scale,
        "selection": selection,
        "pairs": pairs,
        "forecasts": forecasts,
        "levels": levels,
        "nightly": nightly,
        "alarms": alarms,
        "delays": delays,
        **compare_tables.TABLES,
    }
    for name, lines in tables.items():
        if f"<!-- benchmark: {name} -->" not in text:
            continue
        path = results / f"{_SOURCES.get(name, name)}.json"
        result = json.loads(path.read_text()) if path.exists() else {"table": []}
        rows = lines(result["table"])
        if len(rows) < 2:  # a head alone
            print(f"{name}: no results, the table is left as it is")
            continue
        text = rewrite(text, name, markdown(rows, result["environment"]))
    page.write_text(text)


if __name__ == "__main__":
    if given := sys.argv[1:]:
        main(*map(Path, given))
    else:
        for page in PAGES:
            main(page)
