"""Texts about groups with spaces in their columns, and notes that name their groups."""

import numpy as np
import pandas as pd
import pytest

import calibscale as cs


@pytest.fixture(scope="module")
def text():
    rng = np.random.default_rng(1)
    n = 2000
    p = rng.random(n)
    columns = {
        "p": p,
        "y": (rng.random(n) < p - 0.1).astype(int),
        "home clinic": np.arange(n) % 40,
        "body height": rng.normal(170.0, 9.0, n),
    }
    names = ["home clinic", "body height"]
    source = cs.from_frame(pd.DataFrame(columns), probabilities="p", labels="y", covariates=names)
    groups = ["home clinic", "body height:[165,175]"]
    result = cs.evaluate(source, "tce2_debiased", group_by=groups, interval="jackknife")
    assert result["tce2_debiased"].value > 0  # so that the note is about groups alone
    return " ".join(cs.as_text(result).replace("\u00a0", " ").split())


@pytest.mark.long
def test_ranges__of_a_column_with_spaces_are_not_named_twice(text):
    assert "165 < body height ≤ 175" in text
    assert "body height:[165,175] =" not in text


@pytest.mark.long
def test_notes__say_which_groups_they_are_about(text):
    notes = text.partition(" Notes ")[2]
    assert notes.startswith("tce2_debiased, positive class, where home clinic = ")
    assert " more: negative by chance; the interval is of a square, which is not" in notes


def test_commands__quote_names_of_columns_for_a_shell(text):
    assert "calibscale audit STORE --covariates 'home clinic'" in text
