"""Checks of arguments: the right values pass unchanged, the others are refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from jko.checks import (
    as_float_tensor,
    check_finite_number,
    check_integer,
    check_kind,
    check_positive,
    check_sign,
    check_tensors,
)
from jko.errors import InvalidInput


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.uint8(3), np.float64(3), torch.tensor(3)])
def test_whole_numbers_of_any_type_pass(value: object) -> None:
    number = check_integer(value, "n", least=1)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.5, float("inf"), float("nan"), "3", None, [3], np.array([1, 2])])
def test_other_values_are_no_whole_numbers(value: object) -> None:
    with pytest.raises(InvalidInput, match="n must be a whole number"):
        check_integer(value, "n", least=1)


def test_whole_numbers_have_a_least() -> None:
    with pytest.raises(InvalidInput, match="n must be at least 1, got 0"):
        check_integer(0, "n", least=1)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "one", None, torch.ones(2)])
def test_steps_are_positive_numbers(value: object) -> None:
    with pytest.raises(InvalidInput, match="tau must be"):
        check_positive(value, "tau")


def test_zero_where_it_is_allowed() -> None:
    assert check_positive(0, "sigma2", zero=True) == 0
    assert check_positive(np.float32(0.5), "tau") == 0.5


@pytest.mark.parametrize("check", [check_positive, check_finite_number])
@pytest.mark.parametrize("value", ["0.5", b"0.5", True, np.True_])
def test_text_and_truth_values_are_no_numbers(check: Callable[[object, str], float], value: object) -> None:
    # float() would take each of them.
    with pytest.raises(InvalidInput, match="tau must be a number, got"):
        check(value, "tau")


@pytest.mark.parametrize("value", [0, 2, True, "+1", None, 0.5])
def test_only_two_signs(value: object) -> None:
    with pytest.raises(InvalidInput, match="sign must be"):
        check_sign(value)


def test_lists_do_not_pass_through_the_default_precision() -> None:
    assert as_float_tensor([0.1], "x").item() == 0.1
    assert as_float_tensor(0.1, "x").shape == ()
    assert as_float_tensor([torch.tensor([1.0, 2.0])], "x").shape == (1, 2)
    assert as_float_tensor(0.1, "x", dtype=torch.float32).dtype == torch.float32


def test_what_is_of_another_kind_is_refused() -> None:
    check_kind(True, int, "x")
    with pytest.raises(InvalidInput, match=r"^x must be an instance of int, got '3'$"):
        check_kind("3", int, "x")
    with pytest.raises(InvalidInput, match=r"must be an instance of dict such as \{\}, got <class .*; write dict\(\)$"):
        check_kind(dict, dict, "x", example="{}")
    with pytest.raises(InvalidInput, match=r"^x must be an instance of int, got Tensor$"):
        check_kind(torch.ones(3, 3), int, "x")


def test_tensors_are_told_from_arrays() -> None:
    check_tensors(x=torch.ones(2), y=torch.nn.Parameter(torch.ones(2)))
    for value in ([1.0], np.ones(2), None):
        with pytest.raises(InvalidInput, match=r"^y must be an instance of Tensor, got .+; use torch\.as_tensor$"):
            check_tensors(x=torch.ones(2), y=value)
