"""Machines without a compiler, without a home, without the package: KeOps is reported as missing, nothing breaks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jko.errors import MissingDependency
from jko.reductions import keops_available, keops_probe
from jko.reductions.keops_probe import KeOpsProbe, require_keops, run_keops

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keops_probe.torch.cuda, "is_available", lambda: False)


def probed() -> KeOpsProbe:
    """A fresh verdict, past the cache."""
    return keops_available.__wrapped__()


def refused(caplog: pytest.LogCaptureFixture, cause: str) -> None:
    with caplog.at_level(logging.WARNING, logger="jko"):
        probe = probed()
    assert not probe.available
    assert cause in probe.reason
    assert [record.getMessage() for record in caplog.records] == [f"KeOps is not available: {probe.reason}"]


@pytest.mark.usefixtures("without_cuda")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pykeops")
    monkeypatch.setenv("CXX", "nothing")
    monkeypatch.setenv("PATH", "")
    refused(caplog, "no C++ compiler was found (nothing or ")


@pytest.mark.parametrize("variable", ["HOME", "KEOPS_CACHE_FOLDER"])
def test_without_a_folder(variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pykeops")
    monkeypatch.delenv("KEOPS_CACHE_FOLDER", raising=False)
    monkeypatch.setenv(variable, "/dev/null")
    refused(caplog, "cannot be written; set KEOPS_CACHE_FOLDER")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_with_a_read_only_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pykeops")
    monkeypatch.delenv("KEOPS_CACHE_FOLDER", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o555)
    refused(caplog, "cannot be written")


def test_not_installed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "pykeops", None)
    refused(caplog, "pykeops is not installed")


def test_a_broken_installation(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        sys.stdout.write("[KeOps] Warning : There were warnings or errors :\nx.cpp:1: fatal error: no omp.h\n")
        raise KeyError("pykeops_cpp_1")

    monkeypatch.setattr(keops_probe, "_obstacle", lambda: None)
    monkeypatch.setattr(keops_probe, "_tiny_reduction", broken)
    refused(caplog, "KeyError: 'pykeops_cpp_1' (x.cpp:1: fatal error: no omp.h)")


def test_wrong_sums(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(keops_probe, "_obstacle", lambda: None)
    monkeypatch.setattr(keops_probe, "_tiny_reduction", lambda: "a test sum gave [0.0, 0.0]")
    refused(caplog, "a test sum gave")


def test_the_verdict_is_kept() -> None:
    assert keops_available() is keops_available()


def test_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keops_probe, "keops_available", lambda: KeOpsProbe(False, "no compiler"))
    with pytest.raises(MissingDependency, match="KeOps is not available: no compiler"):
        require_keops()
    with pytest.raises(MissingDependency, match="KeOps is not available: no compiler"):
        run_keops(("test", "never built"), lambda: 1)


def test_what_a_first_call_prints_is_swallowed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keops_probe, "keops_available", lambda: KeOpsProbe(True, ""))

    def talkative() -> int:
        sys.stdout.write("from Python")
        os.write(1, b"from below")
        return 7

    assert run_keops(("test", "talkative"), talkative) == 7
    os.write(1, b"mine")
    assert capfd.readouterr().out == "mine"
    # Standard output is left alone once the formula is built.
    assert run_keops(("test", "talkative"), talkative) == 7
    assert "from below" in capfd.readouterr().out


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keops_probe, "keops_available", lambda: KeOpsProbe(True, ""))

    def interrupted() -> None:
        raise error

    with pytest.raises(error):
        run_keops(("test", "interrupted"), interrupted)
    os.write(1, b"heard")
    assert capfd.readouterr().out == "heard"


def test_import_of_the_package_leaves_keops_alone() -> None:
    code = "import sys, jko.reductions; print('pykeops' in sys.modules, 'keopscore' in sys.modules)"
    assert run(code, dict(os.environ)) == "False False"


@pytest.mark.keops
@pytest.mark.slow
@pytest.mark.skipif(not keops_available().available, reason=f"KeOps: {keops_available().reason}")
def test_processes_together_on_an_empty_cache(tmp_path: Path) -> None:
    code = "import jko.reductions; print(jko.reductions.keops_available())"
    environment = {**os.environ, "KEOPS_CACHE_FOLDER": str(tmp_path / "cache")}
    environment.pop("HOME", None)
    processes = [start(code, environment) for _ in range(2)]
    assert {finished(process) for process in processes} == {"KeOpsProbe(available=True, reason='')"}


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    return out.strip()


def run(code: str, environment: dict[str, str]) -> str:
    return finished(start(code, environment))
