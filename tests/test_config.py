from __future__ import annotations

import tomllib

import pytest

from jko import InvalidInput
from jko.config import CompareConfig, RunConfig, check_config, merge, read_toml, to_toml


def _message(model, text: str, source: str = "a.toml") -> str:
    with pytest.raises(InvalidInput) as caught:
        check_config(model, tomllib.loads(text), source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_complete():
    config = check_config(CompareConfig, {})
    assert config.solve.taus == [0.01, 0.005, 0.0025]
    assert config.flow.metrics == ["wasserstein2", "weighted", "headwise"]
    assert config.flow.sign == 1
    assert check_config(RunConfig, {}).scheme.name == "jko"


def test_whole_numbers_serve_as_floats():
    assert check_config(CompareConfig, {"solve": {"t1": 1, "taus": [1]}}).solve.taus == [1.0]


@pytest.mark.parametrize(
    ("model", "text", "parts"),
    [
        (CompareConfig, "[solve]\ntua = [0.1]", ["unknown key solve.tua = [0.1]", "did you mean solve.taus?"]),
        (CompareConfig, "sede = 1", ["unknown key sede = 1", "did you mean seed?"]),
        (RunConfig, "[sheme]\ntau = 1.0", ["unknown key sheme", "did you mean scheme?"]),
        (RunConfig, "[flow]\nqqqq = 1", ["unknown key flow.qqqq = 1", "there are manifold, metric, sign"]),
        (RunConfig, '[scheme]\ntau = "1e-2"', ['scheme.tau = "1e-2": must be a number', "without quotes"]),
        (CompareConfig, '[solve]\ntaus = ["1e-2"]', ['solve.taus.0 = "1e-2": must be a number', "without quotes"]),
        (CompareConfig, "[solve]\ntaus = 0.1", ["solve.taus = 0.1: must be a list"]),
        (CompareConfig, "[solve]\ntaus = []", ["solve.taus = []: must not be empty"]),
        (CompareConfig, "[solve]\ntaus = [0.1, -0.1]", ["solve.taus.1 = -0.1: must be greater than 0"]),
        (CompareConfig, "[solve]\nt1 = inf", ["solve.t1 = inf: must be finite"]),
        (CompareConfig, "[solve]\nt1 = nan", ["solve.t1 = nan: must be"]),
        (CompareConfig, "[solve]\nt1 = 0", ["solve.t1 = 0: must be greater than 0"]),
        (CompareConfig, "[measure]\nn = 3.5", ["measure.n = 3.5: must be a whole number"]),
        (CompareConfig, "[measure]\nn = true", ["measure.n = true: must be a whole number"]),
        (CompareConfig, "[measure]\nn = 0", ["measure.n = 0: must be at least 1"]),
        (CompareConfig, "seed = -1", ["seed = -1: must be at least 0"]),
        (CompareConfig, "seed = 4294967296", ["seed = 4294967296: must be less than 4294967296"]),
        (CompareConfig, 'dtype = "float16"', ['dtype = "float16"', "'float64' or 'float32'"]),
        (CompareConfig, "[flow]\nsign = 0", ["flow.sign = 0: must be one of 1 or -1"]),
        (RunConfig, "[flow]\nsign = true", ["flow.sign = true: must be 1 or -1"]),
        (CompareConfig, '[flow]\nmetrics = ["W2"]', ['flow.metrics.0 = "W2"', "'wasserstein2', 'weighted'"]),
        (CompareConfig, "heads = 3", ["heads = 3: must be a table"]),
        (CompareConfig, "device = 1", ["device = 1: must be text in quotes"]),
        (CompareConfig, '[measure]\npoints = "x.npy"\nn = 3', ["[measure] points gives n and d"]),
        (CompareConfig, '[heads]\nfile = "D.npy"\nsigma2 = 1.0', ["[heads] file gives the heads: leave out sigma2"]),
        (CompareConfig, '[heads]\ntimes = "t.npy"', ["[heads] times belongs to file"]),
        (CompareConfig, '[heads]\nphases = "shared"', ['phases belongs to process = "oscillating"']),
        (CompareConfig, '[heads]\nprocess = "constant"\ndt = 0.1', ["dt belongs to a process that moves"]),
        (RunConfig, '[scheme]\nname = "explicit"\nrtol = 1e-6', ["[scheme] rtol belongs to"]),
        (RunConfig, "[solve]\nsave_every = 0\nt1 = -1", ["(and 1 more)"]),
    ],
)
def test_bad_configurations_fail_with_one_line(model, text, parts):
    message = _message(model, text)
    assert message.startswith("a.toml: ")
    for part in parts:
        assert part in message


def test_a_misspelt_key_is_named_first():
    assert "unknown key solve.tt" in _message(CompareConfig, "[measure]\nn = 0\n[solve]\ntt = 1")


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(InvalidInput, match=r"nothing\.toml does not exist"):
        read_toml(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = \n")
    with pytest.raises(InvalidInput, match=r"broken\.toml is no TOML: .*line 1"):
        read_toml(broken)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_toml(tmp_path)


def test_a_byte_order_mark_is_no_key(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 3\r\n")
    assert read_toml(tmp_path / "a.toml") == {"seed": 3}


def test_merge_goes_table_by_table_and_changes_nothing():
    base = {"a": 1, "t": {"x": 1, "y": 2}}
    assert merge(base, {"t": {"y": 3}, "b": 2}) == {"a": 1, "t": {"x": 1, "y": 3}, "b": 2}
    assert base == {"a": 1, "t": {"x": 1, "y": 2}}


@pytest.mark.parametrize("model", [CompareConfig, RunConfig])
def test_written_configurations_read_back(model, tmp_path):
    config = check_config(model, {"seed": 3, "solve": {"t1": 0.1 + 0.2}})
    path = tmp_path / "config.toml"
    path.write_bytes(to_toml(config))
    assert check_config(model, read_toml(path)) == config
