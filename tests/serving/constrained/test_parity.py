"""xgrammar, llguidance and outlines-core beside this course's guides, on SmolLM2's vocabulary.

`benchmarks/constrained_parity.py` wrote the record, `data/constrained/parity.json`, and
`benchmarks/test_constrained_parity.py` repeats it by hand. What it shows, for its regular
expressions, schemas and texts:
- llguidance allows exactly our tokens on every regular expression, apart from \\d and \\w, which
  are Unicode there and ASCII here. Neither accepts a text that its schema forbids.
- xgrammar allows special tokens as if they were text, and a newline for the dot. It drops maxLength
  beside pattern, type beside enum, uniqueItems, not, and the exclusiveness of oneOf, some of them
  with a warning; it reads a pattern as if it were anchored.
- outlines-core loses tokens that follow a text that could have ended, unless the text can end after
  them too: (ab)+ with the tokens a and b stops after ab. It drops pattern beside maxLength,
  minimum, maximum, multipleOf, uniqueItems, not, and type beside enum.
- With the tokens {ab, c}, xgrammar and llguidance start ab|cd with c and are stuck; outlines-core
  refuses the vocabulary.
- We refuse valid texts only for the reasons in REFUSED, which `json_schema` states.

Times in the record are CPU times: the machine was busy, so the times on the clock would say little.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
RECORD = json.loads((ROOT / "course_pkg/data/constrained/parity.json").read_text("utf-8"))
# Texts that satisfy their schema and that we refuse, for a stated reason.
REFUSED = {
    "one way of writing a string": [r'"\u00e9\u00e9"', r'"\u00e9"', r'"\/"'],
    "one way of writing an integer": ["-0", "1e2", "1.0"],
    "bounded numbers": ["1" * 16, "1" * 40, "1e400"],
    "the schema's order": ['{"b": null, "a": null}'],
    "no other properties": ['{"c": 1}', '{"a": null, "c": 1}'],
    "bounded white space": ['{\n  "a": null\n}', '{"a"' + " " * 50 + ": null}"],
    "no white space outside": [' {"a": null}', '{"a": null} '],
}


def test_we_accept_no_text_that_its_schema_forbids_and_refuse_a_valid_one_for_stated_reasons():
    assert [row for row in RECORD["texts"] if not row.get("valid", True) and row["course"]] == []
    ours = {row["text"] for row in RECORD["texts"] if row.get("valid") and row["course"] is False}
    assert ours == {text for texts in REFUSED.values() for text in texts}


def test_tokens_that_each_library_allows():
    rows = [row for row in RECORD["masks"] if row["program"] == "llguidance"]
    assert len(rows) >= 10
    for row in rows:
        if row["pattern"] not in (r"\d+", r"\w+"):
            assert set(row["more"]) == set(row["fewer"]) == {0}
            assert row["steps"] == row["our_steps"] == row["their_steps"]
    trimming = RECORD["trimming"]
    assert trimming["course"] == [0]
    assert trimming["xgrammar"] == trimming["llguidance"] == [0, 1]
    assert "incompatible with the regex" in trimming["outlines-core"]
    for name, allowed in RECORD["after_the_end"].items():
        assert allowed == ([2] if name == "outlines-core" else [0, 2])
