"""The page on records names every column that a run can have, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

import jko
from tests.meta.source import ROOT

CHECKS = (jko.DeGiorgi(), jko.LocalMinimality(), jko.Splitting(samples=20, iterations=2), jko.Uniqueness())


def _runs() -> Iterator[jko.Solution]:
    """One short run of every kind."""
    tokens = jko.ParticleMeasure(jko.initial_tokens(5, 3, seed=0))
    heads = jko.OrnsteinUhlenbeckHeads(0.3 * jko.initial_heads(2, 3, seed=0), dt=0.01, t1=0.01, seed=0)
    for metric in (jko.WeightedWasserstein(), jko.HeadwiseWasserstein()):
        flow = jko.GradientFlow(jko.AttentionEnergy(heads), metric)
        for scheme in (jko.JKO(0.01, checks=CHECKS), jko.ExplicitEuler(0.01, ledger=True)):
            yield jko.solve(flow, tokens, scheme, t1=0.01)
    flat = jko.GradientFlow(jko.AttentionEnergy(heads), jko.Wasserstein2())
    for transport in (jko.ExactOT(), jko.Sinkhorn(0.1)):
        yield jko.solve(flat, tokens, jko.JKO(0.01, transport=transport), t1=0.01, throw=False)
    field = jko.AttentionField(jko.ConstantHeads(torch.eye(3)[None]))
    yield jko.solve(jko.VelocityFlow(field), tokens, jko.RK4(0.01), t1=0.01)


def _named(text: str) -> set[str]:
    """Names in the first cells of the tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_names_every_column_and_no_other() -> None:
    named = _named((ROOT / "docs" / "records.md").read_text("utf-8"))
    found = {name for run in _runs() for table in (run.states, run.records) for name in table}
    assert named == found


def test_the_reader_of_tables_reads_first_cells_only() -> None:
    assert _named("| `a`, `b` | `c` |\n| d | `e` |\ntext `f`\n") == {"a", "b"}
