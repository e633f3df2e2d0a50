"""Line numbers of the keys of a TOML file."""

from __future__ import annotations

import pytest

from calibscale.monitoring.job.toml_lines import Positions

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
        (("a",), 1),
        (("b",), 2),
        (("b", "c"), 2),
        (("d",), 3),
        (("d", 0), 4),
        (("d", 1), 5),
        (("d", 1, 1), 6),
        (("e f",), 8),
        (("t",), 12),
        (("t", "u", "w", 1), 13),
        (("t", "u", "none"), 13),
        (("t", "none"), 12),
        (("l", 0, "m"), 16),
        (("l", 1), 17),
        (("l", 1, "m"), 17),
        (("l", 1, "n", "o"), 19),
        (("p", "q"), 20),
        (("p", "q", "r", "s"), 21),
        (("none",), 1),
        (("a", 0), 1),
        ((), 1),
    ],
)
def test_line__is_that_of_the_key_or_of_its_table(where, line):
    assert Positions(TOML).line(where) == line
