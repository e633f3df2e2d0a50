"""``calibscale recalibrate``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibscale as cs
from tests.support.command_store import ROWS


@pytest.mark.long
def test_recalibrate__fits_saves_and_applies(run, store, tmp_path, caplog):
    path, new, picture = (tmp_path / name for name in ("fit.json", "new.zarr", "fit.svg"))
    ran = run("recalibrate", store, "--json", path, "--figure", picture)
    assert ran.code == 0
    fitted = cs.recalibrate(store)
    assert f"temperature T = {fitted.estimates['temperature']:.4g} (standard error" in ran.out
    assert "judge it on others" in caplog.text  # on standard error without a handler
    assert picture.read_text().startswith("<?xml")
    loaded = cs.load_recalibration(path)
    assert (loaded.estimates, loaded.state) == (fitted.estimates, fitted.state)
    ran = run("recalibrate", "--load", path, "--apply", store, "-o", new)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"{ROWS:,} recalibrated rows in {new}")
    expected = fitted.apply(store).read(0, ROWS)
    np.testing.assert_array_equal(
        cs.LogitStore.open(new).source.read(0, ROWS).values, expected.values
    )
    again = run("recalibrate", store, "--apply", store, "-o", new, "--quiet")
    assert again.code == 2
    assert "already exists; pass --overwrite" in again.err
    again = run("recalibrate", "--load", path, "--apply", store, "-o", new, "--overwrite", "-q")
    assert (again.code, again.out) == (0, "")
    page = tmp_path / "report.html"
    assert run("report", path, "-o", page).code == 0
    assert "Log loss on the rows of the fit" in page.read_text()


def test_recalibrate__local_bias_has_its_options(run, binary, store, tmp_path):
    options = ["--method", "local_bias", "--prediction-bandwidth", "0.2", "--json", "-"]
    ran = run("recalibrate", binary, *options)
    assert ran.json["estimates"]["prediction_bandwidth"] == 0.2
    assert ran.json["schema"] == "calibscale.recalibration/1"
    ran = run("recalibrate", store, "--method", "local_bias", "--covariates", "age")
    assert ran.code == 2
    assert "local_bias is for two classes; there are 4" in ran.err


@pytest.mark.parametrize(
    "method",
    ["vector(slope_spread=0.1)", "structured(matrix=False)", "one_vs_rest(method=platt)"],
)
def test_recalibrate__methods_for_many_classes_have_settings(run, store, tmp_path, method):
    path, new = tmp_path / "fit.json", tmp_path / "new.zarr"
    ran = run("recalibrate", store, "--method", method, "--json", path)
    assert ran.code == 0
    assert run("recalibrate", "--load", path, "--apply", store, "-o", new).code == 0
    expected = cs.recalibrate(store, method).apply(store).read(0, ROWS)
    np.testing.assert_array_equal(
        cs.LogitStore.open(new).source.read(0, ROWS).values, expected.values
    )


def test_recalibrate__writes_an_onnx_model(run, store, binary, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="it runs exported models")
    rng = np.random.default_rng(0)
    for rows, kind in ((store, "logits"), (binary, "probabilities")):
        fit, model = tmp_path / f"{kind}.json", tmp_path / f"{kind}.onnx"
        ran = run("recalibrate", rows, "--method", "temperature", "--json", fit, "--onnx", model)
        assert ran.code == 0
        assert f"wrote {model}" in ran.err
        session = runtime.InferenceSession(model)
        (entry,) = session.get_inputs()
        assert entry.name == kind
        values = rng.dirichlet(np.ones(entry.shape[1]), 20).astype(np.float32)
        (result,) = session.run(None, {kind: values})
        expected = cs.load_recalibration(fit).transform(**{kind: values})
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "pass either STORE, to fit to, or --load"),
        (["STORE", "--load", "fit.json"], "pass either STORE, to fit to, or --load"),
        (["STORE", "-o", "new.zarr"], "--output --apply"),
        (["STORE", "--apply", "STORE"], "needs --output or --figure"),
        (["--load", "fit.json", "--figure", "x.png"], "--figure needs --apply"),
        (["--load", "fit.json", "--method", "platt"], "--method and options of covariates do not"),
        (
            ["STORE", "--method", "temperature", "--covariates", "age"],
            "temperature has no covariates (methods with it: local_bias",
        ),
        (
            ["STORE", "--covariates", "age"],
            "options of covariates need a --method with covariates",
        ),
        (["STORE", "--figure", "x.gif"], "names of pictures end in"),
        (["--load", "fit.json"], "fit.json: cannot be read"),
    ],
)
def test_recalibrate__says_what_is_wrong(run, store, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ran = run("recalibrate", *(store if text == "STORE" else text for text in arguments))
    assert ran.code in (1, 2)
    assert message in " ".join(ran.err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_recalibrate__stops_at_the_first_invalid_row(run, store, spoiled, tmp_path):
    path, new = tmp_path / "fit.json", tmp_path / "new.zarr"
    assert run("recalibrate", spoiled).code == 4
    assert run("recalibrate", store, "--json", path).code == 0
    ran = run("recalibrate", "--load", path, "--apply", spoiled, "-o", new)
    assert ran.code == 4
    assert "row 17" in ran.err
    assert "did not finish" in run("evaluate", new).err or "unfinished" in run("evaluate", new).err
    ran = run("recalibrate", "--load", path, "--apply", spoiled, "-o", new, "--on-invalid", "drop")
    assert ran.code == 0
    assert json.loads(run("info", new, "--json", "-").out)["rows"] == ROWS - 2


def test_fit__of_intervals_reads_its_groups_from_a_table(run, tmp_path):
    rng = np.random.default_rng(0)
    centre, group = rng.normal(size=300), rng.integers(0, 2, 300)
    lines = ["low,high,y,group"]
    lines += [
        f"{c - 1},{c + 1},{c + (1 + g) * e},{g}"
        for c, g, e in zip(centre, group, rng.normal(size=300), strict=True)
    ]
    table, fit, new = (str(tmp_path / name) for name in ("rows.csv", "fit.json", "new.zarr"))
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    columns = ["--predictions", "low,high", "--labels", "y", "--forecast", "interval(coverage=0.9)"]
    fitted = run(
        *("recalibrate", table, *columns, "--method", "conformal"),
        *("--covariates", "group", "--json", fit),
    )
    assert fitted.code == 0, fitted.err
    # The fit knows its covariate, which the command need not name again.
    applied = run("recalibrate", "--load", fit, "--apply", table, *columns, "-o", new)
    assert applied.code == 0, applied.err
    coverage = cs.evaluate(new, "coverage", group_by="group").groups
    assert all(estimates[0].value > 0.89 for estimates in coverage.values())
