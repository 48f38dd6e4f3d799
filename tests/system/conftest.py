"""What system tests share."""

from __future__ import annotations

import pytest

from tests.system.told import Told, train_and_listen


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return a run that has ended; whoever changes something there takes a copy."""
    return train_and_listen(tmp_path_factory.mktemp("told"))
