from __future__ import annotations

import math

import numpy as np
import pytest

from forebay.objectives import LossSums, summarize

SUMS = LossSums(
    loss=-0.25,
    tokens=8.0,
    real_tokens=32.0,
    sequences=4.0,
    rejected_tokens=2.0,
    rejected_sequences=1.0,
    clipped_tokens=4.0,
    capped_tokens=1.0,
    clamped_tokens=3.0,
    clamped_sequences=2.0,
    missing_tokens=5.0,
    ratio_sum=9.6,
    weight_sum=6.0,
    weight_sq_sum=9.0,
    k3_sum=0.4,
    abs_logprob_diff_sum=1.6,
    entropy_sum=12.0,
    log_product_sum=-8.0,
    log_geometric_sum=-4 * math.log(2),
    sequence_weight_sum=4.0,
    sequence_weight_sq_sum=8.0,
    reference_k3_sum=0.8,
    gain_sum=-0.4,
    value_loss=0.125,
)


def test_summary_of_known_sums() -> None:
    figures = summarize(LossSums(*(np.float32(value) for value in SUMS)))
    assert figures.ess == pytest.approx(36 / (8 * 9))
    assert figures.sequence_ess == pytest.approx(16 / (4 * 8))
    assert figures.clamped_sequences == 2
    assert figures.clip_fraction == 0.5
    assert figures.cap_fraction == 0.125
    assert figures.rejected_fraction == 0.25
    assert figures.rejected_sequence_fraction == 0.25
    assert figures.mask_fraction == 0.75
    assert figures.k3 == pytest.approx(0.05)
    assert figures.reference_kl == pytest.approx(0.1)
    assert figures.gain == pytest.approx(-0.05)
    assert figures.value_loss == 0.125
    assert figures.logprob_mismatch == pytest.approx(0.2)
    assert figures.entropy == 1.5
    assert figures.ratio_mean == pytest.approx(1.2)
    assert figures.weight_mean == 0.75
    assert figures.log_ratio_product == -2.0
    assert figures.geometric_ratio == pytest.approx(0.5)
    assert (figures.fresh_tokens, figures.clamped_tokens, figures.missing_tokens) == (8, 3, 5)
    assert type(figures.loss) is float


def test_summary_of_a_step_without_tokens_is_finite() -> None:
    figures = summarize(LossSums(*(0.0 for _ in SUMS)))
    assert (figures.ess, figures.clip_fraction, figures.geometric_ratio) == (0.0, 0.0, 1.0)
