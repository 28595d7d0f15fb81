"""The table of `make budgets`: what is over is named, what was not measured is said."""

import json

import budgets


def test_the_table_names_what_is_over_and_what_was_not_measured(tmp_path):
    files = {
        "_build/logs/tests.json": {
            "seconds": 11 * 60,
            "collection_seconds": 8.5,
            "tests": {"a.py::test_quick": 1.0, "a.py::test_long": 12.5, "a.py::test_slow": 40},
            "slow": ["a.py::test_slow"],
        },
        # 30 processor seconds on half of a laptop's speed are 15 on a laptop.
        "_build/html/page-costs.json": {
            "book/a": {"cpu_seconds": 30, "gflops": budgets.GFLOPS / 2},
            "book/b": {"cpu_seconds": 30, "gflops": 2 * budgets.GFLOPS},
        },
    }
    for name, record in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(record))
    lines = [" ".join(line.split()) for line in budgets.table(tmp_path, {"make": 725.2})]
    assert lines[1:] == [
        "make 12 min 5 s 12 min over",
        "make test 11 min 12 min",
        "collecting the tests 8.5 s 20.0 s",
        "number of tests 3 9,000",
        "",
        "pages to build: 1 of 2 over the budget",
        "book/b 30.0 s 20.0 s over",
        "",
        "pages to read: not measured; there are none",
        "",
        "tests that aren't marked slow: 1 of 2 over the budget",
        "a.py::test_long 12.5 s 10.0 s over",
        "",
        "speeds beside other libraries: not measured; make bench measures them",
    ]
