from __future__ import annotations

from tests.verify.statements import assert_as_expected, run


def test_weak_form():
    assert_as_expected(run("weak-form"))
