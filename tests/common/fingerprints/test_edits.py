"""What an edit makes stale: pages, records, grades, cases. On a copy of the course."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import rerun

from course_pkg.grading.classroom.execution.grade_key import checks_hash, current_judging_hash
from course_pkg.grading.questions import registry
from course_pkg.grading.questions.question import parse_questions
from course_pkg.pages.experiments import FOLDER, current_hashes, load_experiment, script_sources
from tests.repository import ROOT

WORDS = [  # file, old, new: nothing that runs is other than before
    ("course_pkg/acceleration/attention/flash.py", '"""', '"""In other words: '),
    (
        "course_pkg/common/arguments.py",
        " must be an integer of at least ",
        " should be no less than ",
    ),
    (
        "course_pkg/common/files.py",
        "def disk_is_full",
        "def unused():\n    pass\n\n\ndef disk_is_full",
    ),
    ("course_pkg/adapters/lora.py", "\n\n\n", "\n\n\n# a comment\n"),
    ("course_pkg/sandbox/watchdog.py", '"""', '"""In other words: '),
    ("course_pkg/grading/assignments/bleu/questions.toml", 'says = "', 'says = "Note: '),
    ("course_pkg/grading/classroom/feedback/class_report.py", '"""', '"""In other words: '),
]
RENAMED = [  # file, name of a local variable, new name
    ("course_pkg/metrics/bleu.py", "halvings", "times"),
    ("course_pkg/lm/cache.py", "present", "there"),
]


@dataclass
class State:
    """Every fingerprint of a course."""

    pages: dict[str, str | None]
    records: dict[str, dict[str, str | None]]
    judging: str
    checks: dict[str, str]


def state(root: Path) -> State:
    sources = script_sources(root)
    pages = sorted((root / "book").rglob("*.md"))
    checks = {}
    for name in registry.assignments():
        folder = root / "course_pkg/grading/assignments" / name.replace("-", "_")
        files = {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()
        }
        questions = parse_questions(name, files["questions.toml"].decode())
        checks[name] = checks_hash(questions, files, root)
    return State(
        {p.stem: rerun.fingerprint(sources, p, p.read_text("utf-8")) for p in pages},
        {p.stem: current_hashes(load_experiment(p.stem), sources) for p in FOLDER.glob("*.json")},
        current_judging_hash(root),
        checks,
    )


@pytest.fixture
def course(tmp_path) -> Path:
    skipped = shutil.ignore_patterns("__pycache__", "_build", "_labs")
    for name in ("course_pkg", "book"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def before() -> State:
    return state(ROOT)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, f"{path}: {old!r}"
    path.write_text(text.replace(old, new, 1), "utf-8")


def changed(after: dict, before: dict) -> set[str]:
    assert after.keys() == before.keys()
    return {name for name in after if after[name] != before[name]}


@pytest.mark.slow
def test_words_unused_functions_and_names_of_locals_make_nothing_stale(course, before):
    for name, old, new in WORDS:
        edit(course / name, old, new)
    for name, old, new in RENAMED:
        path = course / name
        renamed = re.sub(rf"\b{old}\b", new, path.read_text("utf-8"))
        assert renamed != path.read_text("utf-8")
        path.write_text(renamed, "utf-8")
    assert state(course) == before


@pytest.mark.slow
def test_a_real_change_makes_stale_what_can_run_it_and_no_more(course, before):
    edit(course / "course_pkg/adapters/lora.py", "return alpha /", "return 2 * alpha /")
    edit(course / "course_pkg/grading/questions/verdict.py", "\ndef ", "\nEXTRA = 1\n\n\ndef ")
    after = state(course)
    pages = changed(after.pages, before.pages)
    assert pages >= {"lora", "lora-training", "qlora", "peft"}
    assert pages.isdisjoint({"bleu", "kv-cache", "constrained-output", "flash-attention"})
    records = changed(after.records, before.records)
    assert records >= {"lora_rank", "peft_methods", "qlora_smollm2"}
    assert records.isdisjoint({"kv_cache_cost", "serving_policies", "pairwise_smollm2"})
    lora = "course_pkg/adapters/lora.py"
    assert all(after.records[name][lora] != before.records[name][lora] for name in records)
    checks = changed(after.checks, before.checks)
    assert "lora-math" in checks and checks.isdisjoint({"bleu", "scheduling", "quantization"})
    assert after.judging == before.judging  # nobody uses EXTRA


@pytest.mark.slow
def test_a_change_of_the_judging_concerns_every_grade_and_one_of_checks_their_own(course, before):
    edit(course / "course_pkg/sandbox/limits.py", "import os\n", "import os\n\nprint(1)\n")
    edit(course / "course_pkg/grading/assignments/rouge/cases.py", "rng.choice(", "rng.sample(")
    after = state(course)
    assert after.judging != before.judging
    assert changed(after.checks, before.checks) == {"rouge"}
    assert changed(after.pages, before.pages) <= {
        "code-benchmarks",
        "for-instructors",
        "exercises",
        "setup",
    }
