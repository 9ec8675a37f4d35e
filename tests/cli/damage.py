"""Spoil a file of a finished folder and ask every reading command: `python tests/cli/damage.py --count 200`.

Each folder kind is made once with two neighbours: `other`, the same command with another seed, and `older`, the same
folder at an earlier time. A command may then show all that was written, or name what is not there; nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import jko
from jko import plotting
from jko.cli import main

WAYS = ("delete", "cut", "flip", "swap", "older")
KINDS = ("run", "solution", "sweep", "comparison", "verification", "paper")
LOST, DONE = 4, 0
RUN = """
seed = {seed}
[measure]
n = 8
[scheme]
name = "explicit"
tau = 0.02
[solve]
t1 = {t1}
checkpoint_every = 1
"""
_SMALL = ("-n", "8", "-H", "2", "--t1", "0.1", "--tau", "0.05", "--tau", "0.025", "-q")
_PAPER = ("--small", "-n", "6", "--t1", "0.2", "--heads", "1,3", "--paths", "2", "-q")


def call(*arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process: (status, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("main did not exit")


def figure_files(figure: Any, stem: Path, *, dpi: int = 130) -> list[str]:
    """Figures take most of the time: files with a content of their own, made of what the figure shows."""
    lines = [line.get_ydata() for axes in figure.axes for line in axes.lines]
    names = [f"{stem.name}.{suffix}" for suffix in ("png", "pdf")]
    for name in names:
        text = f"{name} {stem.parent.name} " + " ".join(f"{float(y[-1]):.17g}" for y in lines if len(y))
        stem.with_name(name).write_text(text)
    return names


@contextlib.contextmanager
def quick_figures() -> Iterator[None]:
    """Put `figure_files` and no waiting for the disk in place of what takes long."""
    old = plotting.save_figure, os.fsync
    plotting.save_figure, os.fsync = figure_files, lambda number: None
    try:
        yield
    finally:
        plotting.save_figure, os.fsync = old


@dataclass(frozen=True)
class Place:
    """A folder, its neighbours, and what the commands say of it as long as nothing is spoilt."""

    kind: str
    root: Path
    info: dict[str, Any]
    runs: dict[str, jko.Solution]

    @property
    def whole(self) -> Path:
        """The folder as it was written."""
        return self.root / "whole"

    def renew(self) -> None:
        """Make the copy that is to be spoilt anew."""
        shutil.rmtree(self.root / "spoilt")
        shutil.copytree(self.whole, self.root / "spoilt")


def build(kind: str, root: Path) -> Place:
    """Make the folders of a kind below `root`."""
    root.mkdir(parents=True)
    makers = {"run": _run, "solution": _solution, "sweep": _sweep}
    for name, seed in (("whole", 3), ("other", 4)):
        if kind in makers:
            makers[kind](root, name, seed)
            continue
        if name == "whole":
            _command(kind, root / "older", 5)
        _command(kind, root / name, seed)
    assert call("info", root / "whole")[0] == DONE
    assert call("info", root / "other")[0] == DONE
    # The folders are looked at under one name, that of the copy which is spoilt.
    copy = root / "spoilt"
    shutil.copytree(root / "whole", copy)
    info = json.loads(call("info", copy, "--json")[1])
    return Place(kind, root, info, {name: jko.load(copy / name) for name in _run_names(kind, copy)})


def _run(root: Path, name: str, seed: int) -> None:
    config = root / f"{name}.toml"
    config.write_text(RUN.format(seed=seed, t1=0.12))
    assert call("run", config, "--out", root / name, "-q")[0] == DONE
    if name == "whole":
        shutil.copytree(root / name, root / "older")
    assert call("resume", root / name, "--t1", 0.2, "-q")[0] == DONE


def _solution(root: Path, name: str, seed: int) -> None:
    heads = jko.OrnsteinUhlenbeckHeads(jko.initial_heads(2, 3, seed), dt=0.02, t1=0.2, seed=seed)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads))
    for t1 in (0.1, 0.2):
        measure = jko.ParticleMeasure(jko.initial_tokens(8, 3, seed))
        jko.solve(flow, measure, jko.ExplicitEuler(0.02), t1=t1, config={"seed": seed}).save(
            root / name, overwrite=True
        )
        call("plot", root / name, "-q")
        if (name, t1) == ("whole", 0.1):
            shutil.copytree(root / name, root / "older")


def _sweep(root: Path, name: str, seed: int) -> None:
    config = root / f"{name}.toml"
    for t1 in (0.06, 0.1):
        config.write_text(RUN.format(seed=seed, t1=t1) + "[sweep]\nH = [1, 2]\n")
        assert call("sweep", config, "-j", 1, "--out", root / name, "-q")[0] == DONE
        if (name, t1) == ("whole", 0.06):
            shutil.copytree(root / name, root / "older")
    assert call("plot", root / name, "-q")[0] == DONE


def _command(kind: str, out: Path, seed: int) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "comparison": ("compare", *_SMALL),
        "verification": ("verify", "--quick", "--only", "reduced-metric", "-q"),
        "paper": ("paper", "fig2", *_PAPER),
    }
    assert call(*arguments[kind], "--seed", seed, "--out", out)[0] in (0, 1)


def _run_names(kind: str, folder: Path) -> list[str]:
    if kind in ("run", "solution"):
        return ["."]
    return json.loads((folder / "run.json").read_text()).get("solutions", [])


def spoil(place: Place, draw: random.Random) -> tuple[Path, str]:
    """Spoil one file of a fresh copy so that its bytes differ; return it, relative to the copy, and the way."""
    copy = place.root / "spoilt"
    place.renew()
    files = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file())
    while True:
        name, way = draw.choice(files), draw.choice(WAYS)
        path, data = copy / name, (copy / name).read_bytes()
        if way == "delete":
            path.unlink()
        elif way == "cut":
            path.write_bytes(data[: draw.randrange(len(data))])
        elif way == "flip":
            k = draw.randrange(len(data))
            path.write_bytes(data[:k] + bytes([data[k] ^ (1 << draw.randrange(8))]) + data[k + 1 :])
        else:
            source = place.root / ("other" if way == "swap" else "older") / name
            if not source.exists() or source.read_bytes() == data:
                continue
            shutil.copy(source, path)
        return name, way


def _reads(place: Place, run: str) -> bool:
    """Whether a library user gets the run as it was written."""
    try:
        return _same(jko.load(place.root / "spoilt" / run), place.runs[run])
    except jko.RunFolderError:
        return False


def _same(one: jko.Solution, two: jko.Solution) -> bool:
    tables = [(one.states.numeric(), two.states.numeric()), (one.records.numeric(), two.records.numeric())]
    tables.append((one.trajectory.tensors(), two.trajectory.tensors()))
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in tables)


def complaints(place: Place, name: Path) -> list[str]:
    """Ask every reading command about the spoilt copy; return what they keep silent about."""
    copy, silent = place.root / "spoilt", []
    # A lost chunk is named by its steps, since its name is not written anywhere else.
    named = [name.name, "step"] if name.parent.name in ("chunks", "checkpoints") else [name.name, "run.json"]

    def ask(what: str, status: int, text: str, shown: bool, allowed: tuple[int, ...] = (LOST,)) -> None:
        if "Traceback" in text:
            silent.append(f"{what}: traceback")
        if status == DONE and not shown:
            silent.append(f"{what} exits 0 and does not show what was written")
        if status != DONE and (status not in allowed or not any(word in text for word in named)):
            silent.append(f"{what} exits {status} and says: {text[-300:]!r}")

    for run, whole in place.runs.items():
        try:
            loaded = jko.load(copy / run)
        except jko.RunFolderError as error:
            ask(f"load {run}", LOST, str(error), False)
            continue
        if not _same(loaded, whole):
            ask(f"load {run}", DONE if loaded.status.ok else LOST, str(loaded.failure), False)
    status, out, err = call("info", copy, "--json")
    told = json.loads(out) if out else {}
    kept = ("kind", "title", "reached", "runs", "clouds")
    ask("info", status, out + err, all(told.get(key) == place.info.get(key) for key in kept))
    if place.runs:
        status, out, err = call("plot", copy)
        ask("plot", status, out + err, all(_reads(place, run) for run in place.runs))
    if place.kind == "run":
        status, out, err = call("resume", copy, "-q")
        mended = status == DONE and _reads(place, ".") and call("info", copy)[0] == DONE
        # The configuration is the user's to change: resume compares it with run.json, and names both files and the key.
        ask("resume", status, out + err, mended, (2, LOST) if name.name in ("config.toml", "run.json") else (LOST,))
    if place.kind == "sweep":
        status, out, err = call("sweep", place.root / "whole.toml", "-j", 1, "--out", copy, "-q")
        shown = all(_reads(place, run) for run in place.runs) and call("info", copy)[0] == DONE
        # Without its run.json the folder is not known as that of a sweep, and is left as it is.
        ask("sweep", status, out + err, shown, (2, LOST))
    return silent


def measure(place: Place, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Spoil one file after the other; return how often in which way, and every silence."""
    draw, ways, silent = random.Random(seed), Counter[str](), []
    for k in range(count):
        name, way = spoil(place, draw)
        ways[way] += 1
        silent += [f"{place.kind} {k}: {way} {name}: {line}" for line in complaints(place, name)]
    return ways, silent


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as top, quick_figures():
        for kind in options.kind or KINDS:
            ways, silent = measure(build(kind, Path(top) / kind), options.count, options.seed)
            lines = [f"{kind}: {dict(ways)}, {len(silent)} silent", *silent]
            sys.stdout.write("\n  ".join(lines) + "\n")
            sys.stdout.flush()
            failed |= bool(silent)
    raise SystemExit(failed)
