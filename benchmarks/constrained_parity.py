"""What xgrammar, llguidance and outlines-core allow, and what it costs, beside the course's guides.

    PYTHONPATH=DIR:. python benchmarks/constrained_parity.py [ROUNDS]

prints a JSON record: differences in masks on the same regular expressions, which texts each program
accepts under the same schemas, the tokens it allows in a vocabulary without the token that the text
needs, and CPU times, the programs in turns, one thread each.
`benchmarks/test_constrained_parity.py` says how to install them into DIR.
"""

import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import torch

from course_pkg.lm.load import load_tokenizer
from course_pkg.lm.smollm2 import prepare
from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.guide import Guide
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.regex import parse
from course_pkg.serving.constrained.vocabulary import Vocabulary, vocabulary_of

SLOW_MS = 5000  # a program that compiles this long is measured once
EOS = 2  # SmolLM2's <|im_end|>
REGEXES = {  # pattern → texts that match
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}": ["2026-11-26"],
    r"(yes|no)": ["yes", "no"],
    r"[a-z]+@[a-z]+\.(com|org)": ["someone@example.org"],
    r"[^\x00-\x1f]{0,20}": ["naïve 東京 🙂"],
    r"\d+": ["42", "٣"],  # the second is an Arabic digit
    r"\w+": ["word", "naïve"],
    r".*": ["one line, é", "two\nlines", "a\rb"],
    r"(a|b)*abb": ["ababb"],
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
        "city": {"enum": ["Paris", "Rome", "東京"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANNA = '{"name": "Anna", "age": 31, "tags": ["tall", "quick"], "city": "Rome"}'
OPEN = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
# name → schema and texts; whether each is JSON that satisfies it, by jsonschema or by hand.
SCHEMAS = {
    "pattern and maxLength": (
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
        {'"abc"': True, '"abcd"': False, '"ab1"': False},
    ),
    "pattern without anchors": (
        {"type": "string", "pattern": "[0-9]"},
        {'"a1b"': True, '"1"': True, '"ab"': False},
    ),
    "maxLength counts characters": (
        {"type": "string", "maxLength": 2},
        {'"é🙂"': True, r'"\n\n"': True, '"abc"': False, r'"\u00e9\u00e9"': True},
    ),
    "escapes": (
        {"type": "string"},
        {r'"\u00e9"': True, r'"\/"': True, r'"\ud800"': False, '"\x7f"': True, '"\n"': False},
    ),
    "integers": (
        {"type": "integer", "minimum": -5, "maximum": 120},
        {"120": True, "121": False, "-5": True, "-6": False, "-0": True, "007": False, "1e2": True},
    ),
    "whole floats": ({"type": "integer"}, {"1.0": True, "10": True, "1.5": False}),
    "long integers": ({"type": "integer"}, {"1" * 15: True, "1" * 16: True, "1" * 40: True}),
    "numbers": ({"type": "number"}, {"1e5": True, "1E+5": True, "1.": False, "1e400": True}),
    "property order": (
        OPEN | {"required": ["a", "b"]},
        {'{"a": null, "b": null}': True, '{"b": null, "a": null}': True, '{"a": null}': False},
    ),
    "other properties": (OPEN, {"{}": True, '{"c": 1}': True, '{"a": null, "c": 1}': True}),
    "no other properties": (
        OPEN | {"additionalProperties": False},
        {"{}": True, '{"b": null}': True, '{"c": 1}': False},
    ),
    "white space": (
        OPEN | {"required": ["a"]},
        {
            '{"a":null}': True,
            '{\n  "a": null\n}': True,
            '{"a"' + " " * 50 + ": null}": True,
            ' {"a": null}': True,
            '{"a": null} ': True,
        },
    ),
    "enum and type": ({"type": "integer", "enum": [1, "a"]}, {"1": True, '"a"': False}),
    "format": ({"type": "string", "format": "date"}, {'"2026-11-26"': True, '"2026-13-99"': False}),
    "uniqueItems": (
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        {"[1, 2]": True, "[1, 1]": False},
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, {"9": True, "10": False}),
    "not": ({"type": "string", "not": {"const": "a"}}, {'"b"': True, '"a"': False}),
    "oneOf": (
        {"oneOf": [{"type": "integer"}, {"type": "integer", "maximum": 5}]},
        {"9": True, "3": False},
    ),
    "a person": (PERSON, {ANNA: True, ANNA.replace("31", "131"): False}),
}
TIMED_TEXTS = {
    "regex: date": (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "2026-11-26"),
    "regex: e-mail": (r"[a-z]+@[a-z]+\.(com|org)", "someone@example.org"),
    "regex: 60 characters": (r"[^\x00-\x1f]{0,60}", "It was a bright cold day in April."),
    "schema: a person": (PERSON, ANNA),
    "schema: any object": ({"type": "object"}, '{"name": "Anna", "tags": ["tall", [1, 2.5]]}'),
}


class Ours:
    """This course's guides. A compiled constraint is a Guide, a matcher is a state of it."""

    name = "course"

    def __init__(self, tokenizer):
        self.vocabulary = vocabulary_of(tokenizer, [EOS])
        _ = self.vocabulary.trie

    def regex(self, pattern):
        return Guide(build_automaton(parse(pattern)), self.vocabulary)

    def schema(self, schema):
        return Guide(build_automaton(schema_expression(schema)), self.vocabulary)

    def small(self, pattern, tokens, eos):
        return Guide(build_automaton(parse(pattern)), Vocabulary(tokens, eos=[eos]))

    def start(self, compiled):
        self.guide = compiled
        self.state = compiled.start

    def mask(self):
        return self.guide.mask(self.state).numpy()

    def advance(self, token):
        self.state = self.guide.advance(self.state, token)


class XGrammar:
    """xgrammar; one thread, no cache, other settings as they come (strict_mode)."""

    name = "xgrammar"

    def __init__(self, tokenizer):
        import xgrammar

        self.library = xgrammar
        self.info = self.library.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=[EOS])
        self.compiler = self._compiler(self.info)

    def _compiler(self, info):
        self.bits = self.library.allocate_token_bitmask(1, info.vocab_size)
        self.size = info.vocab_size
        return self.library.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def regex(self, pattern):
        return self.compiler.compile_regex(pattern)

    def schema(self, schema):
        return self.compiler.compile_json_schema(json.dumps(schema))

    def small(self, pattern, tokens, eos):
        info = self.library.TokenizerInfo(tokens, self.library.VocabType.RAW, stop_token_ids=[eos])
        return self._compiler(info).compile_regex(pattern)

    def start(self, compiled):
        self.matcher = self.library.GrammarMatcher(compiled)

    def mask(self):
        self.bits.fill_(-1)
        self.matcher.fill_next_token_bitmask(self.bits)
        return _unpacked(self.bits.numpy(), self.size)

    def advance(self, token):
        if not self.matcher.accept_token(token):
            raise ValueError(f"token {token} is refused")


class LLGuidance:
    """llguidance, settings as they come."""

    name = "llguidance"

    def __init__(self, tokenizer):
        import llguidance.hf
        import llguidance.numpy

        self.library = llguidance
        self.tokenizer = self.library.hf.from_tokenizer(tokenizer, eos_token=EOS)

    def regex(self, pattern):
        return self._matcher(self.tokenizer, self.library.LLMatcher.grammar_from_regex(pattern))

    def schema(self, schema):
        grammar = self.library.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return self._matcher(self.tokenizer, grammar)

    def small(self, pattern, tokens, eos):
        class Small:
            eos_token_id = eos
            bos_token_id = None
            special_token_ids = (eos,)

            def __call__(self, text):
                return []

        Small.tokens = tokens
        wrapped = self.library.LLTokenizer(self.library.TokenizerWrapper(Small()))
        return self._matcher(wrapped, self.library.LLMatcher.grammar_from_regex(pattern))

    def _matcher(self, tokenizer, grammar):
        matcher = self.library.LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        self.size = tokenizer.vocab_size
        self.bits = self.library.numpy.allocate_token_bitmask(1, self.size)
        return matcher

    def start(self, compiled):
        self.matcher = compiled.deep_copy()

    def mask(self):
        self.library.numpy.fill_next_token_bitmask(self.matcher, self.bits)
        return _unpacked(self.bits, self.size)

    def advance(self, token):
        if not self.matcher.consume_token(token):
            raise ValueError(self.matcher.get_error())


class OutlinesCore:
    """outlines-core; schemas by its own regular expressions."""

    name = "outlines-core"

    def __init__(self, tokenizer):
        import outlines_core

        self.library = outlines_core
        ours = vocabulary_of(tokenizer, [EOS])
        self.size = len(ours)
        self.vocabulary = self._vocabulary(ours.tokens, EOS)

    def _vocabulary(self, tokens, eos):
        of_bytes = {}
        for number, token in enumerate(tokens):
            if token and number != eos:
                of_bytes.setdefault(token, []).append(number)
        return self.library.Vocabulary(eos, of_bytes)

    def regex(self, pattern):
        return self.library.Index(pattern, self.vocabulary)

    def schema(self, schema):
        pattern = self.library.json_schema.build_regex_from_schema(json.dumps(schema))
        return self.library.Index(pattern, self.vocabulary)

    def small(self, pattern, tokens, eos):
        self.size = len(tokens)
        return self.library.Index(pattern, self._vocabulary(tokens, eos))

    def start(self, compiled):
        self.guide = self.library.Guide(compiled)
        self.bits = np.zeros((self.size + 31) // 32, np.int32)

    def mask(self):
        self.guide.write_mask_into(self.bits.ctypes.data, self.bits.size, self.bits.itemsize)
        return _unpacked(self.bits, self.size)

    def advance(self, token):
        self.guide.advance(token, return_tokens=False)


def _unpacked(bits, size):
    return np.unpackbits(bits.reshape(-1).view(np.uint8), count=size, bitorder="little").view(bool)


def accepts(program, compiled, ids):
    """Whether the tokens and then the end are allowed."""
    program.start(compiled)
    for token in [*ids, EOS]:
        if not program.mask()[token]:
            return False
        if token != EOS:
            program.advance(token)
    return True


def masks(program, compiled, ids):
    """The masks before each token and at the end, until a token is refused."""
    program.start(compiled)
    found = [program.mask().copy()]
    for token in ids:
        if not found[-1][token]:
            break
        program.advance(token)
        found.append(program.mask().copy())
    return found


def tried(call, *arguments):
    """The result, and None; or None, and the error's first line."""
    try:
        return call(*arguments), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0][:160]


def compare_masks(programs, encode, tokens):
    """For each regular expression and text: how many tokens more and fewer than ours."""
    rows = []
    for pattern, texts in REGEXES.items():
        compiled = {p.name: tried(p.regex, pattern) for p in programs}
        ours = programs[0]
        for text in texts:
            ids = encode(text)
            mine = masks(ours, compiled[ours.name][0], ids)
            for program in programs[1:]:
                made, error = compiled[program.name]
                row = {"pattern": pattern, "text": text, "program": program.name}
                if error:
                    rows.append(row | {"error": error})
                    continue
                theirs = masks(program, made, ids)
                steps = min(len(mine), len(theirs))
                more = [b[: len(a)] & ~a for a, b in zip(mine, theirs, strict=False)]
                fewer = [a & ~b[: len(a)] for a, b in zip(mine, theirs, strict=False)]
                shown = [int(np.flatnonzero(d)[0]) for d in more if d.any()][:1]
                lacking = [int(np.flatnonzero(d)[0]) for d in fewer if d.any()][:1]
                rows.append(
                    row
                    | {
                        "steps": steps,
                        "our_steps": len(mine),
                        "their_steps": len(theirs),
                        "more": [int(d.sum()) for d in more],
                        "fewer": [int(d.sum()) for d in fewer],
                        "first_more": [repr(tokens[t]) for t in shown],
                        "first_fewer": [repr(tokens[t]) for t in lacking],
                    }
                )
    return rows


def compare_texts(programs, encode):
    """For each schema and text: who accepts it."""
    rows = []
    for name, (schema, texts) in SCHEMAS.items():
        compiled = {p.name: tried(p.schema, schema) for p in programs}
        errors = {each: error for each, (_, error) in compiled.items() if error}
        for text, valid in texts.items():
            row = {"schema": name, "text": text, "valid": valid}
            for program in programs:
                made, error = compiled[program.name]
                row[program.name] = None if error else accepts(program, made, encode(text))
            rows.append(row)
        if errors:
            rows.append({"schema": name, "errors": errors})
    return rows


def compare_trimming(programs):
    """The tokens allowed at the start of ab|cd with the tokens {ab, c, </s>}: ours are [0]."""
    found = {}
    for program in programs:
        made, error = tried(program.small, "ab|cd", [b"ab", b"c", b"</s>"], 2)
        if error:
            found[program.name] = error
            continue
        program.start(made)
        found[program.name] = np.flatnonzero(program.mask()[:3]).tolist()
    return found


def compare_after_the_end(programs):
    """The tokens allowed after ab of (ab)+ with the tokens {a, b, </s>}: ours are [0, 2]."""
    found = {}
    for program in programs:
        program.start(program.small("(ab)+", [b"a", b"b", b"</s>"], 2))
        for token in (0, 1):
            program.advance(token)
        found[program.name] = np.flatnonzero(program.mask()[:3]).tolist()
    return found


def compare_times(programs, encode, rounds):
    """CPU time to compile (ms) and per token (µs), medians of the rounds, in turns."""
    rows = []
    for name, (constraint, text) in TIMED_TEXTS.items():
        ids = encode(text)
        times = {program.name: ([], [], []) for program in programs}
        for _ in range(rounds + 1):  # the first warms up
            for program in programs:
                if times[program.name][0] and times[program.name][0][-1] > SLOW_MS:
                    continue
                compile_ = program.regex if isinstance(constraint, str) else program.schema
                started = time.process_time()
                made, error = tried(compile_, constraint)
                compiled = time.process_time()
                if error:
                    continue
                times[program.name][0].append(1e3 * (compiled - started))
                for which in (1, 2):  # the first text after compiling, and the second
                    program.start(made)
                    started = time.process_time()
                    for token in ids:
                        program.mask()
                        try:
                            program.advance(token)
                        except ValueError:
                            break
                    spent = time.process_time() - started
                    times[program.name][which].append(1e6 * spent / len(ids))
        for program in programs:
            lists = [each[1:] or each for each in times[program.name]]
            print(name, program.name, lists[0], file=sys.stderr, flush=True)
            if lists[0]:
                compile_ms, first_us, second_us = (statistics.median(each) for each in lists)
                row = {
                    "rounds": len(lists[0]),
                    "compile_ms": compile_ms,
                    "first_us": first_us,
                    "second_us": second_us,
                }
                spread = {"compile_ms_min": min(lists[0]), "compile_ms_max": max(lists[0])}
                row = {key: round(value, 3) for key, value in (row | spread).items()}
                rows.append({"what": name, "program": program.name, "tokens": len(ids)} | row)
            else:
                rows.append({"what": name, "program": program.name, "error": "not compiled"})
    return rows


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(prepare())

    def encode(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    programs = [kind(tokenizer) for kind in (Ours, XGrammar, LLGuidance, OutlinesCore)]
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()}
        | {n: version(n) for n in ("xgrammar", "llguidance", "outlines-core", "numpy", "torch")},
        "masks": compare_masks(programs, encode, programs[0].vocabulary.tokens),
        "texts": compare_texts(programs, encode),
        "trimming": compare_trimming(programs),
        "after_the_end": compare_after_the_end(programs),
    }
    if rounds:
        programs = [kind(tokenizer) for kind in (Ours, XGrammar, LLGuidance, OutlinesCore)]
        before = os.getloadavg()[0]
        record["times"] = compare_times(programs, encode, rounds)
        record["conditions"] = {
            "rounds": rounds,
            "clock": "CPU time of the process",
            "threads": 1,
            "cores": os.cpu_count(),
            "load_before": round(before, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "niceness": os.nice(0),
            "vocabulary": len(tokenizer),
        }
    print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
