from __future__ import annotations

import pytest

from jko import InvalidInput
from jko.diagnostics import common_intervals


@pytest.mark.parametrize(
    ("t1", "taus", "samples", "expected"),
    [
        (1.0, [0.01, 0.005, 0.0025], 100, 100),
        (0.2, [0.01, 0.005], 100, 20),
        (1.0, [0.01], 30, 25),
        (0.3, [0.1], 100, 3),
        (1.0, [0.5, 1 / 3], 100, 1),
        (2.0, [2.0], 7, 1),
    ],
)
def test_largest_number_of_times_that_every_tau_hits(t1, taus, samples, expected):
    count = common_intervals(t1, taus, samples)
    assert count == expected
    for tau in taus:
        assert (t1 / count) / tau == pytest.approx(round((t1 / count) / tau), rel=1e-9)


def test_a_tau_that_does_not_divide_is_refused_with_the_nearest_that_does():
    with pytest.raises(InvalidInput, match=r"tau = 0\.03 does not divide t1 = 1\.0.*0\.0303"):
        common_intervals(1.0, [0.01, 0.03], 100)


@pytest.mark.parametrize(("t1", "taus", "samples"), [(0.0, [0.1], 1), (1.0, [-0.1], 1), (1.0, [0.1], 0)])
def test_bad_numbers_are_refused(t1, taus, samples):
    with pytest.raises(InvalidInput):
        common_intervals(t1, taus, samples)
