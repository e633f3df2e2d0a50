"""Job files: what they say, and how what is wrong with them is told."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError, fields
from textwrap import dedent

import pytest

from calibscale.errors import OptionError
from calibscale.estimators import CKCE, ECE, ESTIMATORS, JKCE, KLCE, TCE2Debiased
from calibscale.features import RandomFourier
from calibscale.nightly import settings
from calibscale.nightly.job import baseline_days, read_job, window_days
from calibscale.nightly.positions import Positions

SMALL = """
estimators = ["ece", "tce2_debiased", "ckce", "brier"]
[source]
path = "predictions/{date}.zarr"
"""

LARGE = """
name = "scores"
ledger = "kept/ledger"
model = "v3"
group_by = "region"
estimators = [
    "ece",
    "tce2_debiased",
    {name = "ckce", features = 50, bandwidth = 0.5, ridge = 0.03},
    {name = "klce", covariates = ["age"], covariate_bandwidth = {age = 3}, seed = 4},
]
windows = ["day", "7d", "2026-09-01/2026-09-30"]
confidence = 0.9
seed = 7

[source]
path = "predictions/{date}/{model}.parquet"
format = "files"
on_invalid = "drop"
tolerance = 1e-3
[source.columns]
probabilities = "p"
labels = "label"
covariates = ["age", "region"]
weights = "w"

[test]
statistics = ["ckce", "tce2_debiased"]
replicates = 1999
keep = true

[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = 0.01
group = "each"
[[thresholds]]
test = "ckce"
below = 0.001
[[thresholds]]
drift = "ckce"
below = 0.01
group = 2

[drift]
window = "7d"
baseline = "30d"

[alarms]
notions = ["top_label", "canonical"]
level = 0.01
since = 2026-09-01
learn_days = 14

[ranking]
models = ["v2", "v3"]
by = "ckce"

[report]
reliability = "top_label"
map = ["age"]
risk = true

[outputs]
json = "out/{date}.json"
prometheus = "/var/metrics/{name}.prom"
junit = "out/{date}.xml"
history = "out/history.parquet"
report = "out/report.html"

[run]
scheduler = "threads:2"
memory_limit = "1GB"
"""


@pytest.fixture
def job(tmp_path):
    """Reads the text of a job file."""

    def read(text):
        path = tmp_path / "job.toml"
        path.write_text(dedent(text).lstrip("\n"))
        return read_job(path)

    return read


@pytest.fixture
def complaints(job):
    """What is wrong with a text, line by line: (line of the file, the rest)."""

    def read(text):
        with pytest.raises(OptionError) as caught:
            job(text)
        found = [re.fullmatch(r".*job\.toml:(\d+): (.*)", s) for s in str(caught.value).split("\n")]
        assert all(found), str(caught.value)
        return [(int(each[1]), each[2]) for each in found]

    return read


# ---------------------------------------------------------------- what it says


def test_small_job__has_defaults(job, tmp_path):
    found = job(SMALL)
    assert (found.name, found.model, found.group_by) == ("job", "default", None)
    assert found.windows == ("day", "7d", "30d")
    assert (found.confidence, found.seed) == (0.95, 0)
    assert found.source.format == "store"
    assert (found.test, found.drift, found.ranking, found.thresholds) == (None, None, None, ())
    assert (found.alarms.level, found.alarms.learn_days) == (0.05, 28)
    assert (found.alarms.notions, found.alarms.since) == (None, None)
    assert (found.report.map, found.report.risk) == ((), False)
    assert found.outputs.json is None
    assert found.run.memory_limit is None
    assert found.ledger_path == tmp_path / "ledger"


def test_large_job__says_what_the_file_says(job):
    found = job(LARGE)
    assert found.source.columns.covariates == ("age", "region")
    assert found.alarms.since == "2026-09-01"  # a day of TOML, or a text
    assert [t.kind for t in found.thresholds] == ["estimator", "test", "drift"]
    assert [t.window for t in found.thresholds] == ["7d", "day", "7d"]
    assert [t.bound for t in found.thresholds] == ["low", None, None]
    assert [t.group for t in found.thresholds] == ["each", None, 2.0]
    assert found.ranking.window == "day"
    assert found.ranking.models == ("v2", "v3")
    assert found.outputs.history == "out/history.parquet"


def test_estimators__have_their_settings_and_the_seed_of_the_job(job):
    features = RandomFourier(50, 0.5, 7)
    assert job(LARGE).built_estimators() == (
        ECE(),
        TCE2Debiased(),
        CKCE(features, ridge=0.03),
        KLCE(("age",), covariate_bandwidth={"age": 3}, method="spectral", seed=4),
    )


def test_estimators__take_names_numbers_and_lists(job):
    text = """
    estimators = [{name = "ece", edges = [0, 0.5, 1], notion = "positive"}, {name = "jkce"}]
    source = {path = "{date}"}
    """
    ece, jkce = job(text).built_estimators()
    assert ece == ECE(edges=(0.0, 0.5, 1.0), notion="positive")
    assert jkce == JKCE(RandomFourier(100, None, 0))


def test_every_estimator__has_settings_that_a_job_can_name():
    for name, kind in ESTIMATORS.items():
        known = settings.allowed(name)
        assert all(annotation in settings.TYPES for annotation, _ in known.values())
        own = {f.name for f in fields(kind) if f.init}
        assert set(known) <= own | {"features", "bandwidth", "seed"}


def test_every_estimator__can_be_named_alone(job):
    names = [name for name in ESTIMATORS if name != "klce"]
    found = job(f"estimators = {json.dumps(names)}\nsource.path = '{{date}}'\n")
    assert [e.name for e in found.built_estimators()] == names
    assert not any(e.pairwise for e in found.built_estimators())


def test_test__is_of_all_testable_estimators_by_default(job):
    assert job(SMALL + "[test]\n").test.statistics == ("ece", "tce2_debiased", "ckce")


def test_alarms__can_be_off(job):
    assert job("alarms = false\n" + SMALL).alarms is None
    assert job("alarms = true\n" + SMALL).alarms.level == 0.05


def test_job__is_frozen_and_equal_to_itself(job):
    found = job(LARGE)
    assert found == job(LARGE)
    with pytest.raises(FrozenInstanceError):
        found.model = "v4"


def test_to_dict__is_json_with_all_defaults(job):
    told = job(LARGE).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["estimators"][0] == {
        "name": "ece", "bins": 15, "edges": "equal-width", "notion": "top_label",
    }  # fmt: skip
    assert told["source"]["tolerance"] == 1e-3
    assert "file" not in told


def test_place__fills_in_and_starts_from_the_file(job, tmp_path):
    found = job(LARGE)
    day = "2026-11-20"
    assert found.place(found.source.path, day) == f"{tmp_path}/predictions/{day}/v3.parquet"
    assert found.place(found.source.path, day, "v9").endswith(f"{day}/v9.parquet")
    assert found.place(found.outputs.prometheus, day) == "/var/metrics/scores.prom"
    assert found.place("s3://logs/{model}/{date}.zarr", day) == f"s3://logs/v3/{day}.zarr"
    assert found.place("file:///a/{date}", day) == f"/a/{day}"
    assert found.ledger_path == tmp_path / "kept" / "ledger"


def test_place__never_fills_in_twice(job):
    found = job('model = "{date}"\n' + SMALL)
    assert found.place("{model}", "2026-11-20").endswith("/{date}")


def test_importing_calibscale__does_not_import_pydantic():
    code = "import sys, calibscale, calibscale.cli, calibscale.nightly; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "prometheus_client"} & set(found.stdout.split())


# ---------------------------------------------------------------- days


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("day", ("2026-11-20", "2026-11-20")),
        ("1d", ("2026-11-20", "2026-11-20")),
        ("7d", ("2026-11-14", "2026-11-20")),
        ("30d", ("2026-10-22", "2026-11-20")),
        ("999999d", ("0001-01-01", "2026-11-20")),
        ("all", ("0001-01-01", "2026-11-20")),
        ("2026-09-01/2026-09-30", ("2026-09-01", "2026-09-30")),
        ("2026-09-01/2026-09-01", ("2026-09-01", "2026-09-01")),
    ],
)
def test_window_days__are_its_ends(window, expected):
    assert window_days(window, "2026-11-20") == expected


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("30d", ("2026-10-15", "2026-11-13")),
        ("1d", ("2026-11-13", "2026-11-13")),
        ("2026-09-01/2026-09-30", ("2026-09-01", "2026-09-30")),
    ],
)
def test_baseline_days__end_before_the_window(baseline, expected):
    assert baseline_days(baseline, "2026-11-14") == expected


def test_window_days__cross_leap_days():
    assert window_days("2d", "2028-03-01") == ("2028-02-29", "2028-03-01")


# ---------------------------------------------------------------- what is wrong


def test_all_problems__are_told_at_once_with_their_lines(complaints):
    text = """\
    ledgre = "x"
    estimators = [
      "ecee",
      # of all classes
      {name = "ckce", feature = 10, method = "exact"},
      {name = "ece", bins = 0},
    ]
    confidence = 1.5
    [source]
    path = "predictions.zarr"
    fromat = "store"
    [[thresholds]]
    above = nan
    [[thresholds]]
    windo = "7d"
    [outputs]
    json = "{day}.json"
    """
    assert complaints(text) == [
        (1, "ledgre: unknown key; did you mean 'ledger'?"),
        (3, "estimators[0]: there is no estimator 'ecee'; did you mean 'ece'?"),
        (5, "estimators[1].feature: ckce has no such setting; did you mean 'features'?"),
        (
            5,
            "estimators[1].method: 'exact' visits pairs of rows, but a ledger needs sums that "
            "merge; use features",
        ),
        (6, "estimators[2]: ece: bins must be at least 1, not 0"),
        (8, "confidence: must be less than 1, not 1.5"),
        (11, "source.fromat: unknown key; did you mean 'format'?"),
        (13, "thresholds[0].above: must be a finite number, not nan"),
        (15, "thresholds[1].windo: unknown key; did you mean 'window'?"),
        (17, "outputs.json: {day} has no meaning; allowed: date, model, name"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("x", 1, "Expected '='"),
        ("a = 1\na = 2\n", 2, "Cannot overwrite a value"),
        ("a = 1\n\n[b\n", 3, "Expected ']'"),
        ('a = 1\nb = """\n\n', 2, "Unterminated string"),
        ("a = 1\nb = [1\n", 2, "Unclosed array"),
        ("a = 1\nmodel = v3\n", 2, "Invalid value (text needs quotes)"),
        ("ledger = [/kept/days]\n", 1, "Invalid value (text needs quotes)"),
        ("binary = True", 1, "Invalid value (write true)"),
        ('{"model": "v3"}', 1, "Invalid statement: a job is TOML, not JSON"),
    ],
)
def test_no_toml__names_the_line(complaints, text, line, what):
    ((found, told),) = complaints(text)
    assert found == line
    assert told.startswith(what)


def test_no_utf8__names_the_line(tmp_path):
    (tmp_path / "job.toml").write_bytes(b"name = 'a'\nmodel = '\xff'\n")
    with pytest.raises(OptionError, match=r"job\.toml:2: the file is not UTF-8"):
        read_job(tmp_path / "job.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = " + "9" * 10_000])
def test_absurd_toml__is_an_error_like_any_other(job, text):
    with pytest.raises(OptionError, match=r"job\.toml"):
        job(text)


def test_missing_file__is_named(tmp_path):
    with pytest.raises(OptionError, match=r"none\.toml: the job file cannot be read: No such"):
        read_job(tmp_path / "none.toml")


def test_windows_line_ends_and_a_byte_order_mark__are_read(tmp_path):
    text = SMALL.replace("\n", "\r\n") + "strange = 1\r\n"
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(OptionError, match=r"job\.toml:5: source\.strange: unknown key"):
        read_job(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["source: missing", "estimators: missing"]),
        ("source = 3\nestimators = 'ece'", ["source: must be a table", "estimators: must be a li"]),
        ("[source]\n" + SMALL.split("\n")[1], ["source.path: missing", "source.estimators: unkn"]),
    ],
)
def test_required_keys__are_asked_for(complaints, text, expected):
    told = [what for _, what in complaints(text)]
    for start in expected:
        assert any(what.startswith(start) for what in told), told


TABLES = {
    "name = 'a/b'": "name: must be a name without /",
    "model = '..'": "model: must be a name",
    "model = ''": "model: must be a name",
    "model = \"a\\u0000\"": "model: must be a name",
    "name = 'é" + "x" * 300 + "'": "name: must be at most 200 bytes",
    "group_by = 3": "group_by: must be a text, not 3",
    "windows = []": "windows: must have at least 1",
    "windows = ['day', 'day']": "windows: 'day' is there twice",
    "windows = ['7days']": "windows[0]: a window is 'day', '7d', 'all' or 'FIRST/LAST'",
    "windows = ['0d']": "windows[0]: a window is",
    "windows = ['2026-09-30/2026-09-01']": "windows[0]: the first day of",
    "windows = ['2026-09-31/2026-10-01']": "windows[0]: a day is written like",
    "windows = 'day'": "windows: must be a list, not 'day'",
    "seed = -1": "seed: must be greater than or equal to 0, not -1",
    "seed = 18446744073709551616": "seed: must be less than",
    "seed = 1.5": "seed: must be a whole number",
    "seed = true": "seed: must be a whole number",
    "confidence = 0": "confidence: must be greater than 0",
    "ledger = 's3://x'": "ledger: a ledger is a local folder, not a URL",
    "ledger = 'l/{date}'": "ledger: one ledger has all days",
    "ledger = '{'": "ledger: a brace is not closed",
    "alarms = 3": "alarms: must be a table",
    "alarms.enabled = false": "alarms.enabled: unknown key; instead of [alarms], write `alarms = f",
    "alarms.enable = false": "alarms.enable: unknown key; allowed: notions",
    "alarms.level = 1": "alarms.level: must be less than 1",
    "alarms.learn_days = 0": "alarms.learn_days: must be greater than or equal to 1",
    "alarms.notions = ['toplabel']": "alarms.notions[0]: must be 'top_label', 'positive' or",
    "alarms.notions = []": "alarms.notions: must have at least 1",
    "alarms.notions = ['positive', 'positive']": "alarms.notions: 'positive' is there twice",
    "alarms.since = '1.9.2026'": "alarms.since: a day is written like",
    "alarms.since = 2026-01-01T00:00:00": "alarms.since: a day is written like",
    "test.statistics = ['mce']": "test.statistics[0]: 'mce' is not among `estimators`",
    "test.statistics = ['brier']": "test.statistics[0]: brier is not the size of a miscalibrat",
    "test.replicates = 0": "test.replicates: must be greater than or equal to 1",
    "drift = {window = '7d'}": "drift.baseline: missing",
    "drift = {baseline = 'all'}": "drift.baseline: a baseline is '30d' or 'FIRST/LAST'",
    "drift = {baseline = '30d', window = 'all'}": "drift.window: 'all' leaves no days",
    "drift = {baseline = '2026-09-01/2026-09-30', window = '2026-09-30/2026-10-01'}":
        "drift.baseline: it shares days",
    "ranking = {models = ['v1'], by = 'ece'}": "ranking.models: must have at least 2",
    "ranking = {models = ['v1', 'v1'], by = 'ece'}": "ranking.models: 'v1' is there twice",
    "ranking = {models = ['v1', 'v2'], by = 'ecee'}": "ranking.by: 'ecee' is not among `estima",
    "report.reliability = 'positive'": "report.reliability: none of `estimators` has bins",
    "outputs.history = 'a.txt'": "outputs.history: must end in .csv or .parquet",
    "outputs.json = 'https://x/y'": "outputs.json: a file is written, not a URL",
    "outputs.json = 'x/'": "outputs.json: must be a file",
    "outputs = {json = 'a', junit = './a'}": "outputs.junit: is the file of outputs.json, too",
    "run.memory_limit = 'many'": "run.memory_limit: memory limit 'many' is not a size",
    "run.memory_limit = 0": "run.memory_limit: must be more than nothing",
    "run.scheduler = 1": "run.scheduler: must be a text",
}  # fmt: skip


@pytest.mark.parametrize("text", TABLES)
def test_wrong_key__is_told_with_its_line(complaints, text):
    ((line, what),) = complaints(f"# of a day\n{text}\n{SMALL}")
    assert line == 2
    assert what.startswith(TABLES[text])


SOURCES = {
    "path = 'x.zarr'": ("path", "every day would read the same data"),
    "path = '{date}'\nformat = 'parquet'": ("format", "must be 'store', 'files' or 'zarr', not"),
    "path = '{date}'\nbinary = true": ("binary", "the store says that itself"),
    "path = '{date}'\ncolumns.labels = 'y'": ("columns", "the store says that itself"),
    "path = '{date}'\nformat = 'files'": ("", "format 'files' needs [source.columns]"),
    "format = 'zarr'\npath = '{date}'\ncolumns = {labels = 'y'}": (
        "columns", "give exactly one of logits and probabilities"),
    "path = '{date}'\nformat = 'files'\ncolumns = {labels = 'y', logits = 'z', probabilities='p'}":
        ("columns", "give exactly one of logits and probabilities"),
    "path = 's3://{date}'\nformat = 'files'\ncolumns = {labels = 'y', logits = 'z'}": (
        "path", "files must be local"),
    "path = '{date}'\nformat = 'files'\ncolumns = {labels = 'y', logits = 'z', covariates = [1]}":
        ("columns.covariates", "must be a name or a list of names"),
    "path = '{date}'\nformat = 'zarr'\ncolumns = {labels = 'y', logits = 'z', covariates = ['x']}":
        ("columns.covariates", "the name of one array for zarr"),
    "path = '{date}'\nformat = 'zarr'\ncolumns.covariate_names = ['x']\ncolumns.labels = 'y'\n"
    "columns.logits = 'z'": ("columns.covariate_names", "there are no covariates"),
    "path = '{date}'\ntolerance = 0": ("tolerance", "must be greater than 0"),
    "path = '{date}'\ntolerance = true": ("tolerance", "must be a number"),
}  # fmt: skip


@pytest.mark.parametrize("text", SOURCES)
def test_source__is_checked(complaints, text):
    ((line, what),) = complaints(f"estimators = ['ece']\n[source]\n{text}\n")
    key, told = SOURCES[text]
    assert what.startswith(f"source{'.' * bool(key)}{key}: {told}")
    lines = text.split("\n")
    own = [k for k, s in enumerate(lines) if key and s.startswith(key.split(".")[0])]
    assert line in {2, *(3 + k for k in own)}


THRESHOLDS = {
    "estimator = 'ece'": ("", "give exactly one of above and below"),
    "estimator = 'ece'\nabove = 1\nbelow = 0": ("", "give exactly one of above and below"),
    "above = 1": ("", "give exactly one of estimator, test and drift"),
    "estimator = 'ece'\ntest = 'ece'\nabove = 1": ("", "give exactly one of estimator, test and"),
    "estimator = 'ce'\nabove = 1": ("estimator", "'ce' is not among `estimators`; did you mean"),
    "estimator = 'ece'\nabove = 1\nwindow = '8d'": ("window", "'8d' is not among `windows`; all"),
    "estimator = 'ece'\nabove = 1\nbound = 'mean'": ("bound", "must be 'value', 'low' or 'high'"),
    "estimator = 'ece'\nabove = 1\ngroup = 'each'": ("group", "needs `group_by`"),
    "estimator = 'ece'\nabove = 1\ngroup = 'all'": ("group", "must be a number of a group, or"),
    "estimator = 'ece'\nabove = inf": ("above", "must be a finite number"),
    "test = 'ece'\nbelow = 0.05": ("test", "needs [test]"),
    "drift = 'ece'\nbelow = 0.05": ("drift", "needs [drift]"),
}  # fmt: skip


@pytest.mark.parametrize("text", THRESHOLDS)
def test_threshold__is_checked(complaints, text):
    ((line, what),) = complaints(f"{SMALL}\n[[thresholds]]\n{text}\n")
    key, told = THRESHOLDS[text]
    assert what.startswith(f"thresholds[0]{'.' * bool(key)}{key}: {told}")
    lines = text.split("\n")
    assert line == 5 + next((1 + k for k, s in enumerate(lines) if key and s.startswith(key)), 0)


JUDGED = SMALL + "[test]\nstatistics = ['ece']\n[drift]\nwindow = '7d'\nbaseline = '30d'\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("test = 'ckce'\nbelow = 0.01", "test: 'ckce' is not among the statistics of [test]"),
        ("test = 'ece'\nabove = 0.01", "above: a p-value is judged by `below`"),
        ("test = 'ece'\nbelow = 1.5", "below: a p-value is in 0..1"),
        ("test = 'ece'\nbelow = 0.001", "below: never: 199 replicates give p-values from 0.005 up"),
        ("test = 'ece'\nbelow = 0.005", "below: never: 199 replicates"),
        (
            "test = 'ece'\nbelow = 0.01\nwindow = '7d'",
            "window: p-values of '7d' need `keep = true`",
        ),
        ("test = 'ece'\nbelow = 0.01\nbound = 'low'", "bound: for a threshold of an estimator"),
        ("drift = 'mce'\nbelow = 0.01", "drift: 'mce' is not among `estimators`"),
        ("drift = 'ece'\nbelow = 0.01\nwindow = '30d'", "window: drift is judged over the window"),
    ],
)
def test_threshold__of_a_p_value_is_checked(complaints, text, told):
    ((_, what),) = complaints(f"{JUDGED}\n[[thresholds]]\n{text}\n")
    assert what.startswith(f"thresholds[0].{told}")


def test_threshold__that_enough_replicates_can_reach_is_fine(job):
    text = JUDGED.replace("['ece']\n", "['ece']\nreplicates = 1000\n", 1)
    found = job(f"{text}\n[[thresholds]]\ntest = 'ece'\nbelow = 0.001\n")
    assert found.thresholds[0].window == "day"


def test_threshold__of_a_test_has_no_groups(complaints):
    text = f"group_by = 'g'\n{JUDGED}\n[[thresholds]]\ntest = 'ece'\nbelow = 0.1\ngroup = 1\n"
    ((_, what),) = complaints(text)
    assert what == "thresholds[0].group: tests are of all rows"


def test_threshold__twice_is_told(complaints):
    one = "[[thresholds]]\nestimator = 'ece'\nabove = 1\n"
    ((_, what),) = complaints(f"{SMALL}\n{one}{one}")
    assert what == "thresholds[1]: the same as thresholds[0]"


ESTIMATOR_TABLES = {
    "{bins = 3}": "estimators[0]: name: missing",
    "3": "estimators[0]: must be a name or a table, not 3",
    "{name = 'ece', bins = 'many'}": "estimators[0].bins: must be a whole number, not 'many'",
    "{name = 'ece', bins = true}": "estimators[0].bins: must be a whole number, not True",
    "{name = 'ece', edges = ['a']}": "estimators[0].edges: must be a name, or a list of numbers",
    "{name = 'ece', edges = 'odd'}": "estimators[0]: ece: edges must be one of",
    "{name = 'ece', feature = 1}": "estimators[0].feature: ece has no such setting; allowed: bins",
    "{name = 'klce'}": "estimators[0]: klce needs covariates",
    "{name = 'klce', covariates = 'age'}": "estimators[0].covariates: must be a list of names",
    "{name = 'kce', covariates = ['age']}": "estimators[0].covariates: kce has no such setting",
    "{name = 'kce', method = 'auto'}": "estimators[0].method: 'auto' visits pairs of rows",
    "{name = 'kce', method = 'nystrom'}": "estimators[0].method: 'nystrom' visits pairs",
    "{name = 'kce', method = 'fast'}": "estimators[0].method: no 'fast'; use spectral or features",
    "{name = 'jkce', method = 'tiles'}": "estimators[0].method: 'tiles' visits pairs of rows",
    "{name = 'jkce', block = 10}": "estimators[0].block: is of a method that visits pairs",
    "{name = 'ckce', within = 'sex'}": "estimators[0].within: is of a method that visits pairs",
    "{name = 'ckce', bandwidth = 0}": "estimators[0]: ckce: bandwidth must be positive",
    "{name = 'ckce', features = 0}": "estimators[0]: ckce: n_features must be at least 1",
    "{name = 'ckce', product = 1}": "estimators[0].product: ckce has no such setting",
    "'ece', 'ece'": "estimators[1]: 'ece' is there twice",
}  # fmt: skip


@pytest.mark.parametrize("text", ESTIMATOR_TABLES)
def test_estimator__is_checked(complaints, text):
    ((line, what),) = complaints(f"source.path = '{{date}}'\nestimators = [{text}]\n")
    assert line == 2
    assert what.startswith(ESTIMATOR_TABLES[text])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("group_by = 'reigon'", "group_by: 'reigon' is none of the covariates; did you mean 'reg"),
        (
            "report.map = ['sex']",
            "report.map[0]: 'sex' is none of the covariates; allowed: age, re",
        ),
        ("", "estimators[0].covariates: 'agee' is none of the covariates; did you mean 'age'?"),
    ],
)
@pytest.mark.parametrize("kind", ["files", "zarr"])
def test_covariates__that_the_job_lists_are_the_only_ones(complaints, text, told, kind):
    name = "age" if text else "agee"
    columns = {
        "files": "covariates = ['age', 'region']",
        "zarr": "covariates = 'x'\ncovariate_names = ['age', 'region']",
    }
    ((_, what),) = complaints(
        f"""
{text}
estimators = [{{name = "klce", covariates = ["{name}"]}}]
[source]
path = "{{date}}"
format = "{kind}"
[source.columns]
labels = "y"
logits = "z"
{columns[kind]}
"""
    )
    assert what.startswith(told)


def test_later_checks__do_not_repeat_what_was_told(complaints):
    """Tables that are wrong themselves are not missed elsewhere."""
    text = """
    group_by = 3
    windows = ["7days"]
    estimators = ["ecee"]
    source.path = "{date}"
    drift = {}
    test = {statistic = ["ece"]}
    [[thresholds]]
    estimator = "ece"
    window = "7d"
    above = 1
    group = "each"
    [[thresholds]]
    drift = "ece"
    below = 0.1
    [[thresholds]]
    test = "ece"
    below = 0.1
    """
    told = [what.split(":")[0] for _, what in complaints(text)]
    assert told == [
        "group_by", "windows[0]", "estimators[0]", "drift.baseline", "test.statistic",
    ]  # fmt: skip


def test_hostile_keys_and_values__are_told_on_one_line(complaints):
    text = f'{SMALL}"a\\nb\\u001b[31m" = 1\nx = "{"y" * 5000}"\n'
    told = complaints(text)
    assert [line for line, _ in told] == [4, 5]
    assert all("\x1b" not in what and len(what) < 200 for _, what in told)


VALUES = (
    *("3", "-1", "1.5", "true", "nan", "1e400", "'x'", "''", "'{date}'", "[]", "{}", "[[1]]"),
    *("['ece']", "[{}]", "{a = 1}", "2026-01-01", "07:00:00", "99999999999999999999"),
)


@pytest.mark.parametrize("seed", range(8))
def test_any_damage__is_told_with_lines_or_harmless(tmp_path, seed):
    path, rng = tmp_path / "job.toml", random.Random(seed)
    for _ in range(25):
        lines = rng.choice([LARGE, LARGE, JUDGED]).split("\n")
        for at in rng.sample(range(len(lines)), 3):
            key, equals, _ = lines[at].partition("=")
            other = rng.choice(lines)
            twisted = lines[at].replace(rng.choice("=[]'\"{e"), rng.choice("]['{.#"), 1)
            changed = f"{key}= {rng.choice(VALUES)}" if equals else other
            lines[at] = rng.choice([changed, changed, changed, other, "", twisted])
        path.write_text("\n".join(lines))
        told: list[str] = []
        try:
            found = read_job(path)
            assert len(found.built_estimators()) == len(found.to_dict()["estimators"])
        except OptionError as error:
            told = str(error).split("\n")
        for each in told:
            place = re.match(r".*job\.toml:(\d+): ", each)
            assert place, each
            assert 1 <= int(place[1]) <= len(lines)


BEFORE_TABLES = 'estimators = ["ece"]\nsource.path = "{date}"\n'


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = " + "[" * 300 + "]" * 300, 3, "x[0][0]: tables and lists may lie 20 deep"),
        ("x = " + "[" * 10_000, 3, "x[0][0]: tables and lists may lie 20 deep"),
        ("x = 1\n" + ".".join("a" * 900) + " = 1", 4, "a.a.a: tables and lists may lie 20 deep"),
        ("x = " + "{a = " * 200 + "1" + "}" * 200, 3, "x.a.a: tables and lists may lie 20 deep"),
        ("seed = " + "9" * 100_000, 3, "seed: a whole number has at most 19 digits"),
        ("seed = 0x" + "f" * 100_000, 3, "seed: a whole number has at most 19 digits"),
        ("[run]\nmemory_limit = 1e400", 4, "run.memory_limit: must be a size"),
        ("[run]\nmemory_limit = '1e400'", 4, "run.memory_limit: memory limit '1e400' is not a"),
        ("[test]\nreplicates = 1000000000", 4, "test.replicates: must be less than or equal to"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_huge_values__are_told_with_line_and_key(complaints, text, line, told):
    ((found, what),) = complaints(BEFORE_TABLES + text + "\n")
    assert found == line
    assert what.startswith(told)
    assert len(what) < 200


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        ('{name = "ece", bins = 1000000000}', "bins: must be at most 1,000,000, not 1000000000"),
        ('{name = "ckce", features = 1000000000}', "features: must be at most 10,000, not"),
    ],
)
def test_huge_settings__are_told_before_memory_is_taken(complaints, estimator, told):
    ((line, what),) = complaints(f"estimators = [{estimator}]\nsource.path = '{{date}}'\n")
    assert line == 1
    assert what.startswith(f"estimators[0].{told}")


def test_many_problems__the_first_are_told_in_linear_time(complaints):
    text = BEFORE_TABLES + "".join(f"wrong{k} = 1\n" for k in range(20_000))
    started = time.process_time()
    told = complaints(text)
    assert time.process_time() - started < 15
    assert [line for line, _ in told[:-1]] == list(range(3, 23))
    assert told[-1] == (23, "and 19,980 more")


def test_many_thresholds__are_checked_in_linear_time(job):
    table = "[[thresholds]]\nestimator = 'ece'\nabove = 0.{}\n"
    text = BEFORE_TABLES + "".join(table.format(k) for k in range(10_001, 15_001))
    started = time.process_time()
    assert len(job(text).thresholds) == 5000
    assert time.process_time() - started < 15


# ---------------------------------------------------------------- positions

TOML = '''\
a = 1
b.c = 2
d = [
  1,
  [2,
   3],
]
"e f" = """
[x]
a = 1
"""
[t]
u = {v = 1, w = [1, 2]}

[[l]]
m = 1
[[l]]
  [l.n]
  o = 1
[p.q.r]
s = "]"
'''


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (("a",), 1), (("b",), 2), (("b", "c"), 2), (("d",), 3), (("d", 0), 4), (("d", 1), 5),
        (("d", 1, 1), 6), (("e f",), 8), (("t",), 12), (("t", "u", "w", 1), 13),
        (("t", "u", "none"), 13), (("t", "none"), 12), (("l", 0, "m"), 16), (("l", 1), 17),
        (("l", 1, "m"), 17), (("l", 1, "n", "o"), 19), (("p", "q"), 20), (("p", "q", "r", "s"), 21),
        (("none",), 1), (("a", 0), 1), ((), 1),
    ],
)  # fmt: skip
def test_line__is_that_of_the_key_or_of_its_table(where, line):
    assert Positions(TOML).line(where) == line
