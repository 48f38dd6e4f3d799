import logging
import re

import pytest

from forebay.errors import RecordError
from forebay.telemetry.logs import setup_logging


@pytest.fixture(autouse=True)
def logging_as_it_was():
    root, forebay = logging.getLogger(), logging.getLogger("forebay")
    before = list(root.handlers), root.level, forebay.level
    # Their owner closes them, not the code under test.
    for handler in before[0]:
        root.removeHandler(handler)
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    forebay.setLevel(before[2])


def test_records_go_to_stderr_and_to_the_roles_file_in_one_format(tmp_path, capsys):
    setup_logging("actor-0", tmp_path / "logs")
    logging.getLogger("forebay.actors.pool").info("began %d episodes", 8)
    logging.getLogger("forebay.actors.pool").debug("unheard")
    logging.getLogger("elsewhere").info("unheard")
    logging.getLogger("elsewhere").warning("heard")
    text = (tmp_path / "logs" / "actor-0.log").read_text()
    assert capsys.readouterr().err == text
    first, second = text.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} INFO    actor-0 forebay\.actors\.pool: began 8 episodes", first)
    assert re.fullmatch(rf"{time} WARNING actor-0 elsewhere: heard", second)


def test_setting_up_again_replaces_the_handlers(tmp_path, capsys):
    setup_logging("learner", tmp_path)
    setup_logging("learner", tmp_path)
    logging.getLogger("forebay").warning("once")
    assert (tmp_path / "learner.log").read_text().count("once") == 1
    assert capsys.readouterr().err.count("once") == 1


def test_a_role_cannot_name_a_file_elsewhere(tmp_path):
    with pytest.raises(RecordError, match="role must start with a letter"):
        setup_logging("../learner", tmp_path)
