from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from forebay.errors import ConfigError
from forebay.telemetry.settings import TelemetrySettings
from forebay.telemetry.sinks import SinkContext, check_sinks, make_sinks

CONTEXT = SinkContext(Path("run"), "run-1", {})


def test_nothing_is_opened_unless_it_is_wanted() -> None:
    assert make_sinks(TelemetrySettings(), CONTEXT) == ()


@pytest.mark.parametrize(
    ("settings", "key", "extra"),
    [
        (TelemetrySettings(tensorboard=True), "tensorboard", "tensorboard"),
        (TelemetrySettings(wandb="offline"), "wandb", "wandb"),
        (TelemetrySettings(prometheus_port=9400), "prometheus_port", "prometheus"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(settings, key, extra, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"telemetry\.{key} needs a package.*'forebay\[{extra}\]'"):
        check_sinks(settings)


def test_every_wanted_sink_has_a_thread_that_waits_for_the_first_record() -> None:
    pytest.importorskip("tensorboardX")
    pytest.importorskip("prometheus_client")
    threads = make_sinks(TelemetrySettings(tensorboard=True, prometheus_port=9400), CONTEXT)
    assert [thread.name for thread in threads] == ["tensorboard", "prometheus"]
    for thread in threads:
        thread.close()
    assert not Path("run").exists()
