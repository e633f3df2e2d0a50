"""Groups of rows: missing values, ranges, edges and periods, in one syntax for every door."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import calibscale as cs
from calibscale.data.groups import Grouping
from calibscale.errors import InvalidDataError, OptionError

N = 600


def rows(n=N):
    rng = np.random.default_rng(3)
    p = rng.uniform(size=n)
    return p, (rng.random(n) < p).astype(int)


def source_of(**columns):
    p, y = rows()
    frame = pd.DataFrame(columns)
    return cs.from_arrays(probabilities=p, labels=y, binary=True, covariates=frame)


def sizes(result):
    return {f"{key:g}": estimates[0].n for key, estimates in result.groups.items()}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(1)
    region = rng.choice(np.array(["north", "south", None], object), N)
    age = rng.normal(45, 15, N).round(1)
    age[:50] = np.nan
    shop = rng.integers(0, 3, N).astype(float)
    shop[-7:] = np.nan
    return {"region": region, "age": age, "shop": shop}


# ---------------------------------------------------------------- missing values


def test_groups__missing_values_are_a_group_and_none_is_dropped(people):
    source = source_of(**people)
    result = cs.evaluate(source, "brier", group_by=["region", "shop"])
    assert result.n == N
    assert result.dropped == {}
    unknown = [value is None for value in people["region"]]
    assert sizes(result)["missing"] == sum(unknown)
    assert sizes(result.others[0]) == {
        **{f"{k}": int((people["shop"] == k).sum()) for k in range(3)},
        "missing": 7,
    }
    missing = [*result.groups.values()][-1][0]
    p, y = rows()
    assert missing.value == pytest.approx(2 * np.mean((p - y)[unknown] ** 2))


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["serial", "threads:2"])
def test_groups__missing_values_of_blocks_are_merged(people, scheduler):
    source = source_of(**people)
    settings = {"group_by": ["shop", "age:4"], "scheduler": scheduler}
    expected = cs.evaluate(source, "ece", group_by=["shop", "age:4"])
    result = cs.evaluate(source, "ece", block_rows=64, **settings)
    assert sizes(result) == sizes(expected)
    assert sizes(result.others[0]) == sizes(expected.others[0])


def test_groups__a_level_called_missing_keeps_its_name():
    column = np.array(["missing", "north", None] * 200, object)
    result = cs.evaluate(source_of(region=column), "brier", group_by="region")
    assert sizes(result) == {"missing": 200, "north": 200, "(missing)": 200}


def test_groups__json_of_a_missing_group_has_a_name_and_no_value(people):
    result = cs.evaluate(source_of(**people), "brier", group_by=["shop", "region"])
    for document in (result.to_dict()["groups"], *result.to_dict()["other_groups"]):
        last = document["values"][-1]
        assert (last["name"], last["n"] > 0) == ("missing", True)
    assert result.to_dict()["groups"]["values"][-1]["value"] is None


@pytest.mark.long
def test_groups__every_verb_has_the_missing_group(people):
    source = source_of(**people)
    check = cs.check(source, group_by=["shop", "age:[30,60]"], n_replicates=19)
    assert sizes(check)["missing"] == 7
    assert sizes(check.others[0])["missing"] == 50
    diagram = cs.reliability(source, bins=3, group_by="shop")
    assert [f"{key:g}" for key in diagram.groups] == ["0", "1", "2", "missing"]
    audit = cs.audit(source, ["region"], n_replicates=19)
    assert "region = missing" in {group.name for group in audit.groups}


def test_groups__an_infinite_group_is_an_invalid_row(people):
    shop = people["shop"].copy()
    shop[3] = np.inf
    source = source_of(shop=shop)
    with pytest.raises(InvalidDataError, match=r"row 3.*'shop' is inf"):
        cs.evaluate(source, "brier", group_by="shop")
    result = cs.evaluate(source, "brier", group_by="shop", on_invalid="drop")
    assert (result.n, result.dropped) == (N - 1, {"shop is infinite": 1})


def test_cluster__a_missing_name_is_still_an_invalid_row(people):
    with pytest.raises(InvalidDataError, match="is missing, and it names the cluster"):
        cs.evaluate(source_of(**people), "brier", cluster="region")


# ---------------------------------------------------------------- ranges and edges


def test_evaluate__takes_ranges_and_edges_as_the_command_line_does(people):
    age = people["age"]
    result = cs.evaluate(source_of(**people), "brier", group_by=["age:[30,60]", "age:3"])
    assert result.group_by == "age:[30,60]"
    assert sizes(result) == {
        "age ≤ 30": int((age <= 30).sum()),
        "30 < age ≤ 60": int(((age > 30) & (age <= 60)).sum()),
        "age > 60": int((age > 60).sum()),
        "missing": 50,
    }
    thirds = [n for name, n in sizes(result.others[0]).items() if name != "missing"]
    assert len(thirds) == 3
    assert min(thirds) > 0.2 * N


def test_evaluate__a_column_with_a_colon_is_itself():
    result = cs.evaluate(source_of(**{"age:5": [0.0, 1.0] * 300}), "brier", group_by="age:5")
    assert sizes(result) == {"0": 300, "1": 300}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age:1", "NAME:N cuts into 2 to 64 ranges, not '1'"),
        ("age:[30,20]", "edges are increasing numbers in brackets"),
        ("age:[30,old]", "edges are increasing numbers in brackets"),
        ("age:[", "edges are increasing numbers in brackets"),
        ("age:mnth", r"'age' cannot be cut by 'mnth'; write NAME, NAME:5"),
        ("age:month", "'age' has numbers, not dates or times, and no month"),
        ("region:5", "'region' is categorical and has no ranges: group by region"),
        ("region:month", "'region' has the value 'north', which is no date such as 2026-09-14"),
        ("colour", "there is no covariate 'colour'; the source has: region, age, shop"),
        (3, "give the name of one covariate, not int; write NAME"),
    ],
)
def test_evaluate__impossible_groups_say_what_is_possible(people, text, says):
    with pytest.raises(OptionError, match=says):
        cs.evaluate(source_of(**people), "brier", group_by=text)


@pytest.mark.parametrize(
    "text", ["age", "age:5", "age:[18,30.5,65]", "signup:week", "a:b:2", "name:with:colons"]
)
def test_grouping__of_its_own_text_is_equal(text):
    assert str(Grouping.parse(text)) == text
    assert Grouping.parse(str(Grouping.parse(text))) == Grouping.parse(text)


def test_evaluate__dates_as_texts_have_periods():
    days = ["2026-09-14", "2026-10-01T12:00", None] * 200
    source = source_of(signup=np.array(days, object))
    result = cs.evaluate(source, "brier", group_by=["signup:month", "signup:weekday"])
    assert sizes(result) == {"2026-09": 200, "2026-10": 200, "missing": 200}
    assert sizes(result.others[0]) == {"Monday": 200, "Thursday": 200, "missing": 200}


@pytest.mark.parametrize("grouping", ["age:3", "age:[20,40]"])
def test_ranges__name_the_column_of_missing_values(grouping):
    age = np.r_[np.nan, np.arange(299) % 80]
    source = cs.from_arrays(
        probabilities=np.full(300, 0.3),
        labels=np.arange(300) % 2,
        covariates=pd.DataFrame({"age": age}),
    )
    text = str(cs.evaluate(source, "ece", group_by=grouping)).replace("\u00a0", " ")
    assert "age = missing" in text
    assert f"{grouping} = missing" not in text
