"""What the build says of time: what is left while pages run, and the parts that have ended."""

import pytest
import timing


def test_what_is_left_follows_the_two_that_run_and_how_fast_pages_are(tmp_path, monkeypatch):
    told = tmp_path / "book.left"
    monkeypatch.setenv("STEP_LEFT", str(told))
    now = 0.0
    expected = {"a": 100.0, "b": 60.0, "c": 40.0, "d": 20.0}
    progress = timing.Progress(expected, 2, after=30, clock=lambda: now)
    assert progress.left() == 120 + 30  # a and d, b and c: d follows the first that ends
    progress.start("a")
    progress.start("b")
    now = 60.0
    progress.end("b")  # as fast as expected
    assert progress.left() == 60 + 30
    progress.start("c")
    now = 160.0
    progress.end("c")  # 2.5 times slower than expected
    scale = (60 + 100 + timing.STEADY) / (60 + 40 + timing.STEADY)
    assert progress.left() == pytest.approx(scale * (20 + 30))
    progress.start("d")
    now = 1000.0  # both are late
    assert progress.left() == pytest.approx(1000 - scale * 100 + scale * 30)
    progress.end("a")
    progress.end("d")
    assert told.read_text().split()[0] == f"{progress.left():.0f}"
