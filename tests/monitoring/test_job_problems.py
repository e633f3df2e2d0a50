"""Job files with problems: every problem is reported with its line."""

from __future__ import annotations

import random
import re
import time

import pytest

from calibscale.errors import OptionError
from calibscale.monitoring.job.job_reader import read_job
from tests.support.jobs import BEFORE_TABLES, LARGE, SMALL


def test_all_problems__are_reported_at_once_with_their_lines(complaints):
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
        (17, "outputs.json: unknown placeholder {day}; allowed: date, model, name"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
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
def test_no_toml__names_the_line(complaints, text, line, problem):
    ((number, message),) = complaints(text)
    assert number == line
    assert message.startswith(problem)


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
def test_required_keys__are_reported_as_missing(complaints, text, expected):
    messages = [problem for _, problem in complaints(text)]
    for start in expected:
        assert any(problem.startswith(start) for problem in messages), messages


TABLES = {
    "name = 'a/b'": "name: must be a name without /",
    "model = '..'": "model: must be a name",
    "model = ''": "model: must be a name",
    'model = "a\\u0000"': "model: must be a name",
    "name = 'é" + "x" * 300 + "'": "name: must be at most 200 bytes",
    "group_by = 3": "group_by: must be a string, not 3",
    "windows = []": "windows: must have a length of at least 1",
    "windows = ['day', 'day']": "windows: 'day' is listed twice",
    "windows = ['7days']": "windows[0]: a window is 'day', '7d', 'all' or 'FIRST/LAST'",
    "windows = ['0d']": "windows[0]: a window is",
    "windows = ['2026-09-30/2026-09-01']": "windows[0]: the first day of",
    "windows = ['2026-09-31/2026-10-01']": "windows[0]: a day must be a date",
    "windows = 'day'": "windows: must be a list, not 'day'",
    "seed = -1": "seed: must be greater than or equal to 0, not -1",
    "seed = 18446744073709551616": "seed: must be less than",
    "seed = 1.5": "seed: must be a whole number",
    "seed = true": "seed: must be a whole number",
    "confidence = 0": "confidence: must be greater than 0",
    "ledger = 's3://x'": "ledger: a ledger is a local folder, not a URL",
    "ledger = 'l/{date}'": "ledger: one ledger has all days",
    "ledger = '{'": "ledger: unmatched brace in",
    "alarms = 3": "alarms: must be a table",
    "alarms.enabled = false": "alarms.enabled: unknown key; instead of [alarms], write `alarms = f",
    "alarms.enable = false": "alarms.enable: unknown key; allowed: notions",
    "alarms.level = 1": "alarms.level: must be less than 1",
    "alarms.learn_days = 0": "alarms.learn_days: must be greater than or equal to 1",
    "alarms.notions = ['toplabel']": "alarms.notions[0]: must be 'top_label', 'positive' or",
    "alarms.notions = []": "alarms.notions: must have a length of at least 1",
    "alarms.notions = ['positive', 'positive']": "alarms.notions: 'positive' is listed twice",
    "alarms.since = '1.9.2026'": "alarms.since: a day must be a date",
    "alarms.since = 2026-01-01T00:00:00": "alarms.since: a day must be a date",
    "test.statistics = ['mce']": "test.statistics[0]: 'mce' is not among `estimators`",
    "test.statistics = ['brier']": "test.statistics[0]: brier is not a calibration error",
    "test.replicates = 0": "test.replicates: must be greater than or equal to 1",
    "drift = {window = '7d'}": "drift.baseline: missing",
    "drift = {baseline = 'all'}": "drift.baseline: a baseline is '30d' or 'FIRST/LAST'",
    "drift = {baseline = '30d', window = 'all'}": "drift.window: 'all' leaves no days",
    "drift = {baseline = '2026-09-01/2026-09-30', window = '2026-09-30/2026-10-01'}": (
        "drift.baseline: shares days"
    ),
    "ranking = {models = ['v1'], by = 'ece'}": "ranking.models: must have a length of at least 2",
    "ranking = {models = ['v1', 'v1'], by = 'ece'}": "ranking.models: 'v1' is listed twice",
    "ranking = {models = ['v1', 'v2'], by = 'ecee'}": "ranking.by: 'ecee' is not among `estima",
    "outputs.history = 'a.txt'": "outputs.history: must end in .csv or .parquet",
    "outputs.json = 'https://x/y'": "outputs.json: must be a local file",
    "outputs.json = 'x/'": "outputs.json: must be a file",
    "outputs = {json = 'a', junit = './a'}": "outputs.junit: is also the file of outputs.json",
    "run.memory_limit = 'many'": "run.memory_limit: memory limit 'many' is not a size",
    "run.memory_limit = 0": "run.memory_limit: must be positive",
    "run.scheduler = 1": "run.scheduler: must be a string",
}


@pytest.mark.parametrize("text", TABLES)
def test_invalid_key__is_reported_with_its_line(complaints, text):
    ((line, problem),) = complaints(f"# of a day\n{text}\n{SMALL}")
    assert line == 2
    assert problem.startswith(TABLES[text])


FILES = "path = '{date}'\nformat = 'files'\n"
ARRAYS = "path = '{date}'\nformat = 'zarr'\n"
SOURCES = {
    "path = 'x.zarr'": ("path", "every day would read the same data"),
    "path = '{date}'\nformat = 'parquet'": ("format", "must be 'store', 'files' or 'zarr', not"),
    "path = '{date}'\nbinary = true": ("binary", "only for format = 'files' or"),
    "path = '{date}.zarr'\ncolumns.labels = 'y'": ("columns", "only for format = 'files' or"),
    "path = '{date}'\nformat = 'files'": ("", "format 'files' needs [source.columns]"),
    "format = 'zarr'\npath = '{date}'\ncolumns = {labels = 'y'}": (
        "columns",
        "give exactly one of logits and probabilities",
    ),
    FILES + "columns = {labels = 'y', logits = 'z', probabilities='p'}": (
        "columns",
        "give exactly one of logits and probabilities",
    ),
    "path = '{date}'\nstorage_options = {anon = true}": (
        "storage_options",
        "only for URLs; the path is local",
    ),
    "path = 's3://{date}'\nstorage_options = 'anon'": (
        "storage_options",
        "must be a table, such as",
    ),
    FILES + "columns = {labels = 'y', logits = 'z', covariates = [1]}": (
        "columns.covariates",
        "must be a name or a list of names",
    ),
    ARRAYS + "columns = {labels = 'y', logits = 'z', covariates = ['x']}": (
        "columns.covariates",
        "must name one array for",
    ),
    ARRAYS + "columns.covariate_names = ['x']\ncolumns.labels = 'y'\ncolumns.logits = 'z'": (
        "columns.covariate_names",
        "there are no covariates",
    ),
    "path = '{date}.csv'\nlabels = 'y'\ncolumns = {labels = 'y', logits = 'z'}": (
        "labels",
        "unknown key; names of columns belong in [source.columns]: labels = …",
    ),
    "path = 'x/{date}/*.parquet'": ("", "format 'files' needs [source.columns]"),
    "path = '{date}/y.npz'\nformat = 'store'\nbinary = true": (
        "binary",
        "only for format = 'files' or",
    ),
    "path = '{date}'\ntolerance = 0": ("tolerance", "must be greater than 0"),
    "path = '{date}'\ntolerance = true": ("tolerance", "must be a number"),
}


@pytest.mark.parametrize("text", SOURCES)
def test_source__is_checked(complaints, text):
    ((line, problem),) = complaints(f"estimators = ['ece']\n[source]\n{text}\n")
    key, message = SOURCES[text]
    place = f"source.{key}" if key else "source"
    assert problem.startswith(f"{place}: {message}")
    lines = text.split("\n")
    places = [k for k, s in enumerate(lines) if key and s.startswith(key.split(".")[0])]
    assert line in {2, *(3 + k for k in places)}


THRESHOLDS = {
    "estimator = 'ece'": ("", "give exactly one of above, below and abs_above"),
    "estimator = 'ece'\nabove = 1\nbelow = 0": ("", "give exactly one of above, below and"),
    "above = 1": ("", "give exactly one of estimator, test and drift"),
    "estimator = 'ece'\ntest = 'ece'\nabove = 1": ("", "give exactly one of estimator, test and"),
    "estimator = 'ce'\nabove = 1": ("estimator", "'ce' is not among `estimators`; did you mean"),
    "estimator = 'ece'\nabove = 1\nwindow = '8d'": ("window", "'8d' is not among `windows`; all"),
    "estimator = 'ece'\nabove = 1\nbound = 'mean'": ("bound", "must be 'value', 'low' or 'high'"),
    "estimator = 'ece'\nabove = 1\ngroup = 'each'": ("group", "needs `group_by`"),
    "estimator = 'ece'\nabove = 1\ngroup = true": ("group", "must be the name or number of a"),
    "estimator = 'ece'\nabove = 1\ngroup = ''": ("group", "must be the name or number of"),
    "estimator = 'ece'\nabs_above = -1": ("abs_above", "must be greater than or equal to 0"),
    "estimator = 'ece'\nabs_above = 1\nabove = 1": ("", "give exactly one of above, below and"),
    "estimator = 'ece'\nabove = inf": ("above", "must be a finite number"),
    "test = 'ece'\nbelow = 0.05": ("test", "needs [test]"),
    "drift = 'ece'\nbelow = 0.05": ("drift", "needs [drift]"),
}


@pytest.mark.parametrize("text", THRESHOLDS)
def test_threshold__is_checked(complaints, text):
    ((line, problem),) = complaints(f"{SMALL}\n[[thresholds]]\n{text}\n")
    key, message = THRESHOLDS[text]
    place = f"thresholds[0].{key}" if key else "thresholds[0]"
    assert problem.startswith(f"{place}: {message}")
    lines = text.split("\n")
    assert line == 5 + next((1 + k for k, s in enumerate(lines) if key and s.startswith(key)), 0)


JUDGED = SMALL + "[test]\nstatistics = ['ece']\n[drift]\nwindow = '7d'\nbaseline = '30d'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test = 'ckce'\nbelow = 0.01", "test: 'ckce' is not among the statistics of [test]"),
        ("test = 'ece'\nabove = 0.01", "above: a p-value needs `below`"),
        ("test = 'ece'\nabs_above = 0.01", "abs_above: a p-value needs `below`"),
        ("test = 'ece'\nbelow = 1.5", "below: a p-value limit must be in (0, 1]"),
        (
            "test = 'ece'\nbelow = 0.001",
            "below: cannot be breached: the smallest p-value of 199 replicates is 0.005;",
        ),
        ("test = 'ece'\nbelow = 0.005", "below: cannot be breached: the smallest"),
        (
            "test = 'ece'\nbelow = 0.01\nwindow = '7d'",
            "window: p-values of '7d' need `keep = true`",
        ),
        (
            "test = 'ece'\nbelow = 0.01\nbound = 'low'",
            "bound: only for a threshold of an estimator",
        ),
        ("drift = 'mce'\nbelow = 0.01", "drift: 'mce' is not among `estimators`"),
        (
            "drift = 'ece'\nbelow = 0.01\nwindow = '30d'",
            "window: must be the window of [drift], '7d'",
        ),
    ],
)
def test_threshold__of_a_p_value_is_checked(complaints, text, message):
    ((_, problem),) = complaints(f"{JUDGED}\n[[thresholds]]\n{text}\n")
    assert problem.startswith(f"thresholds[0].{message}")


def test_threshold__that_enough_replicates_can_reach_is_accepted(job):
    text = JUDGED.replace("['ece']\n", "['ece']\nreplicates = 1000\n", 1)
    parsed = job(f"{text}\n[[thresholds]]\ntest = 'ece'\nbelow = 0.001\n")
    assert parsed.thresholds[0].window == "day"


def test_threshold__of_a_test_has_no_groups(complaints):
    text = f"group_by = 'g'\n{JUDGED}\n[[thresholds]]\ntest = 'ece'\nbelow = 0.1\ngroup = 1\n"
    ((_, problem),) = complaints(text)
    assert problem == "thresholds[0].group: tests use all rows, not groups"


def test_repeated_threshold__is_reported(complaints):
    threshold = "[[thresholds]]\nestimator = 'ece'\nabove = 1\n"
    ((_, problem),) = complaints(f"{SMALL}\n{threshold}{threshold}")
    assert problem == "thresholds[1]: repeats thresholds[0]"


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
    "{name = 'kce', method = 'fast'}": "estimators[0].method: unknown method 'fast'; use sp",
    "{name = 'jkce', method = 'tiles'}": "estimators[0].method: 'tiles' visits pairs of rows",
    "{name = 'jkce', block = 10}": "estimators[0].block: belongs to a method that visits pairs",
    "{name = 'ckce', within = 'sex'}": "estimators[0].within: belongs to a method that "
    "visits pairs",
    "{name = 'ckce', bandwidth = 0}": "estimators[0]: ckce: bandwidth must be positive",
    "{name = 'ckce', features = 0}": "estimators[0]: ckce: n_features must be at least 1",
    "{name = 'ckce', product = 1}": "estimators[0].product: ckce has no such setting",
    "'ece(bins=many)'": "estimators[0].bins: must be a whole number, not 'many'",
    "'ece(bins=3'": "estimators[0]: 'ece(bins=3' is not an estimator: write a name, or",
    "'eec(bins=3)'": "estimators[0]: there is no estimator 'eec'; did you mean 'ece'?",
    "'ece', 'ece'": "estimators[1]: 'ece' is listed twice",
}


@pytest.mark.parametrize("text", ESTIMATOR_TABLES)
def test_estimator__is_checked(complaints, text):
    ((line, problem),) = complaints(f"source.path = '{{date}}'\nestimators = [{text}]\n")
    assert line == 2
    assert problem.startswith(ESTIMATOR_TABLES[text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "group_by = 'reigon'",
            "group_by: 'reigon' is not among the covariates; did you mean 'reg",
        ),
        (
            "report.map = ['sex']",
            "report.map[0]: 'sex' is not among the covariates; allowed: age, re",
        ),
        ("", "estimators[0].covariates: 'agee' is not among the covariates; did you mean 'age'?"),
    ],
)
@pytest.mark.parametrize("kind", ["files", "zarr"])
def test_covariates__that_the_job_lists_are_the_only_ones(complaints, text, message, kind):
    name = "age" if text else "agee"
    columns = {
        "files": "covariates = ['age', 'region']",
        "zarr": "covariates = 'x'\ncovariate_names = ['age', 'region']",
    }
    ((_, problem),) = complaints(
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
    assert problem.startswith(message)


def test_later_checks__do_not_repeat_problems(complaints):
    """Tables with problems of their own are not reported as missing elsewhere."""
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
    keys = [problem.split(":")[0] for _, problem in complaints(text)]
    assert keys == [
        "group_by",
        "windows[0]",
        "estimators[0]",
        "drift.baseline",
        "test.statistic",
    ]


def test_hostile_keys_and_values__are_reported_on_one_line(complaints):
    text = f'{SMALL}"a\\nb\\u001b[31m" = 1\nx = "{"y" * 5000}"\n'
    messages = complaints(text)
    assert [line for line, _ in messages] == [4, 5]
    assert all("\x1b" not in problem and len(problem) < 200 for _, problem in messages)


VALUES = (
    *("3", "-1", "1.5", "true", "nan", "1e400", "'x'", "''", "'{date}'", "[]", "{}", "[[1]]"),
    *("['ece']", "[{}]", "{a = 1}", "2026-01-01", "07:00:00", "99999999999999999999"),
)


@pytest.mark.parametrize("seed", range(8))
def test_any_damage__is_reported_with_lines_or_harmless(tmp_path, seed):
    path, rng = tmp_path / "job.toml", random.Random(seed)
    for _ in range(25):
        lines = rng.choice([LARGE, LARGE, JUDGED]).split("\n")
        for at in rng.sample(range(len(lines)), 3):
            key, equals, _ = lines[at].partition("=")
            another_line = rng.choice(lines)
            twisted = lines[at].replace(rng.choice("=[]'\"{e"), rng.choice("]['{.#"), 1)
            changed = f"{key}= {rng.choice(VALUES)}" if equals else another_line
            lines[at] = rng.choice([changed, changed, changed, another_line, "", twisted])
        path.write_text("\n".join(lines))
        messages: list[str] = []
        try:
            parsed = read_job(path)
            assert len(parsed.built_estimators()) == len(parsed.to_dict()["estimators"])
        except OptionError as error:
            messages = str(error).split("\n")
        for message in messages:
            place = re.match(r".*job\.toml:(\d+): ", message)
            assert place, message
            assert 1 <= int(place[1]) <= len(lines)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = " + "[" * 300 + "]" * 300, 3, "x[0][0]: tables and lists may be nested at most 20"),
        ("x = " + "[" * 10_000, 3, "x[0][0]: tables and lists may be nested at most 20"),
        (
            "x = 1\n" + ".".join("a" * 900) + " = 1",
            4,
            "a.a.a: tables and lists may be nested at most 20",
        ),
        (
            "x = " + "{a = " * 200 + "1" + "}" * 200,
            3,
            "x.a.a: tables and lists may be nested at most 20",
        ),
        ("seed = " + "9" * 100_000, 3, "seed: a whole number has at most 19 digits"),
        ("seed = 0x" + "f" * 100_000, 3, "seed: a whole number has at most 19 digits"),
        ("[run]\nmemory_limit = 1e400", 4, "run.memory_limit: must be a size"),
        ("[run]\nmemory_limit = '1e400'", 4, "run.memory_limit: memory limit '1e400' is not a"),
        ("[test]\nreplicates = 1000000000", 4, "test.replicates: must be less than or equal to"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_huge_values__are_reported_with_line_and_key(complaints, text, line, message):
    ((number, problem),) = complaints(BEFORE_TABLES + text + "\n")
    assert number == line
    assert problem.startswith(message)
    assert len(problem) < 200


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        ('{name = "ece", bins = 1000000000}', "bins: must be at most 1,000,000, not 1000000000"),
        ('{name = "ckce", features = 1000000000}', "features: must be at most 10,000, not"),
    ],
)
def test_huge_settings__are_refused_before_memory_is_allocated(complaints, estimator, message):
    ((line, problem),) = complaints(f"estimators = [{estimator}]\nsource.path = '{{date}}'\n")
    assert line == 1
    assert problem.startswith(f"estimators[0].{message}")


@pytest.mark.long
def test_many_problems__are_reported_in_linear_time(complaints):
    text = BEFORE_TABLES + "".join(f"wrong{k} = 1\n" for k in range(20_000))
    started = time.process_time()
    messages = complaints(text)
    assert time.process_time() - started < 15
    assert [line for line, _ in messages[:-1]] == list(range(3, 23))
    assert messages[-1] == (23, "and 19,980 more")


@pytest.mark.long
def test_many_thresholds__are_checked_in_linear_time(job):
    table = "[[thresholds]]\nestimator = 'ece'\nabove = 0.{}\n"
    text = BEFORE_TABLES + "".join(table.format(k) for k in range(10_001, 15_001))
    started = time.process_time()
    assert len(job(text).thresholds) == 5000
    assert time.process_time() - started < 15
