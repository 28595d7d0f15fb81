"""`course score` compared with the programs and libraries whose numbers it prints."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import BootstrapAggregator
from typer.testing import CliRunner

from course_pkg.cli import app
from course_pkg.metrics.rouge.corpus import USUAL, corpus_rouge

WORDS = ("the", "a", "Cat", "cat", "sat", "mat.", "3.5", "re-use", "(so)", "rain,", "all", "day")
OPTIONS = [
    [],
    ["-b", "-w", "4"],
    ["-f", "text", "-w", "3", "-lc"],
    ["-tok", "char", "-s", "floor", "-sv", "0.2"],
    ["-tok", "none", "-s", "add-k"],
    ["--confidence", "-cin", "200", "-w", "2"],
    ["--confidence", "-cin", "200", "-w", "2", "-f", "text"],
    ["-sl", "-w", "2"],
    ["-sl", "-b", "-s", "none"],
]


def corpus(size=60, seed=0):
    """Two reference files, and two systems that repeat one of them with errors."""
    rng = random.Random(seed)
    one, two = (
        [" ".join(rng.choices(WORDS, k=rng.randint(3, 14))) for _ in range(size)] for _ in "12"
    )

    def system(share):
        return [" ".join(w for w in text.split() if rng.random() > share) or "x" for text in one]

    return {"ref.txt": one, "ref2.txt": two, "worse.txt": system(0.2), "better.txt": system(0.15)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in corpus().items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def printed(*arguments):
    """What our program and sacrebleu's print, with their versions taken out."""
    ours = CliRunner().invoke(app, ["score", "bleu", *arguments])
    assert ours.exit_code == 0, ours.output
    command = [sys.executable, "-m", "sacrebleu", *arguments]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own_version = ours.stdout.partition("version:")[2].partition(" ")[0]
    assert own_version in ("", "course_pkg")
    return [text.splitlines() for text in (ours.stdout, theirs)]


def without_version(line):
    head, found, tail = line.partition("version:")
    if not found:
        return "version" if '"version"' in line else line
    return head + tail[tail.index(" = ") if " = " in tail else tail.index('"') :]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_one_system_is_printed_as_by_sacrebleu(folder, options):
    ours, theirs = printed("ref.txt", "ref2.txt", "-i", "better.txt", *options)
    assert list(map(without_version, ours)) == list(map(without_version, theirs))


def test_several_systems_are_printed_as_by_sacrebleu(folder):
    ours, theirs = printed("ref.txt", "-w", "3", "-i", "worse.txt", "better.txt")
    assert ours == theirs


@pytest.mark.parametrize("test", ["--paired-bs", "--paired-ar"])
def test_the_paired_tests_have_sacrebleus_results(folder, test):
    few = ["-pbsn", "300", "-parn", "300"]
    ours, theirs = (
        json.loads("\n".join(lines))
        for lines in printed("ref.txt", test, *few, "-i", "worse.txt", "better.txt")
    )
    assert [row["system"] for row in ours] == [row["system"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one["BLEU"].keys() == other["BLEU"].keys()
        for name, value in other["BLEU"].items():
            # In the bootstrap sacrebleu sums in float32, so one tie may go either way.
            near = {"abs": 1.5 / 301} if name == "p_value" else {"rel": 1e-5}
            assert one["BLEU"][name] == (None if value is None else pytest.approx(value, **near))
    assert 0.005 < ours[1]["BLEU"]["p_value"] < 0.9  # not extreme, so that an error would show


def test_corpus_rouge_has_rouge_scores_means_and_intervals_as_wide():
    texts = corpus()
    pair = (texts["better.txt"], texts["ref.txt"])
    scorer = RougeScorer(list(USUAL))
    aggregator = BootstrapAggregator(n_samples=4000)
    theirs = [scorer.score(reference, text) for text, reference in zip(*pair, strict=True)]
    for scores in theirs:
        aggregator.add_scores(scores)
    np.random.seed(0)
    drawn = aggregator.aggregate()
    for kind, found in corpus_rouge(*pair, samples=4000).items():
        for part in ("precision", "recall", "fmeasure"):
            ours = getattr(found, part)
            assert ours.mean == pytest.approx(np.mean([getattr(s[kind], part) for s in theirs]))
            width = ours.high - ours.low
            for level in ("low", "high"):
                expected = getattr(getattr(drawn[kind], level), part)
                assert getattr(ours, level) == pytest.approx(expected, abs=width / 8 + 1e-12)
