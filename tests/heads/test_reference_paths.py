"""Head paths of the authors' released code; see tests/reference/README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from jko.heads import ConstantHeads, OrnsteinUhlenbeckHeads, OscillatingHeads

REFERENCE = Path(__file__).parents[1] / "reference"


def close(value: torch.Tensor, expected: np.ndarray) -> None:
    torch.testing.assert_close(value, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_ornstein_uhlenbeck() -> None:
    run = np.load(REFERENCE / "explicit_ou.npz")
    heads = OrnsteinUhlenbeckHeads.from_increments(
        run["D0"], run["dW_sym"], dt=float(run["dt"]), sigma2=float(run["noise_var"]) / 2
    )
    assert abs(heads.t1 - float(run["T"])) < 1e-12
    close(heads.at(float(run["T"])), run["D_final"])


def test_oscillating_with_spread_phases() -> None:
    run = np.load(REFERENCE / "explicit_oscillating.npz")
    arguments = {"dt": float(run["dt"]), "t1": float(run["T"])}
    close(OscillatingHeads(run["D0"], **arguments).at(float(run["T"])), run["D_final"])
    shared = OscillatingHeads(run["D0"], **arguments, phases="shared").at(float(run["T"]))
    assert float((shared - torch.from_numpy(run["D_final"])).abs().max()) > 0.1


def test_frozen() -> None:
    run = np.load(REFERENCE / "explicit_frozen.npz")
    close(ConstantHeads(run["D0"]).at(float(run["T"])), run["D_final"])
