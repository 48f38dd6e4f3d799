import io

from forebay.clock import ManualClock
from forebay.telemetry.progress import Progress, ProgressPrinter, format_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_names_every_figure_with_its_unit():
    progress = Progress(
        step=12,
        busy=0.9731,
        goodput=0.912,
        starved=0.02,
        buffer=7,
        staleness=3.25,
        reward=0.625,
        tokens_per_s=1634.6,
        compiles=0,
    )
    assert format_line(progress, 40) == (
        "step 12/40  busy 97.3%  goodput 91.2%  starved 2.0%  buffer 7  staleness 3.25  reward 0.625  "
        "tokens/s 1635  compiles 0"
    )


def test_figures_that_are_not_known_yet_are_left_out():
    assert format_line(Progress(step=0)) == "step 0"


def test_without_a_terminal_a_plain_line_appears_now_and_then_and_at_the_end():
    clock, stream = ManualClock(), io.StringIO()
    with ProgressPrinter(100, clock, stream=stream, every_s=10.0) as printer:
        for step in range(1, 26):
            printer.update(Progress(step=step, busy=0.5))
            clock.advance(1.0)
    assert stream.getvalue().splitlines() == [f"step {step}/100  busy 50.0%" for step in (1, 11, 21, 25)]


def test_the_last_line_is_not_repeated():
    stream = io.StringIO()
    printer = ProgressPrinter(None, ManualClock(), stream=stream)
    printer.update(Progress(step=1))
    printer.close()
    printer.close()
    assert stream.getvalue() == "step 1\n"


def test_on_a_terminal_one_table_is_redrawn_in_place(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock, stream = ManualClock(), Terminal()
    with ProgressPrinter(3, clock, stream=stream) as printer:
        for step in (1, 2, 3):
            printer.update(Progress(step=step, busy=0.25))
            clock.advance(1.0)
    text = stream.getvalue()
    assert "tokens/s" in text
    assert text.index("1/3") < text.index("2/3") < text.index("3/3")
    assert "\x1b[1A" in text
