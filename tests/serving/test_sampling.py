"""Sampling: filters by hand and against transformers', drawn tokens against their distribution."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from course_pkg.serving.sampling import (
    FIRST_SORTED,
    SamplingParams,
    choose,
    log_probability,
    probabilities,
)
from tests.tables import each_row

HALVES = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def kept(logits=HALVES, tokens=(), **settings):
    return probabilities(logits, SamplingParams(**settings), tokens).tolist()


def test_ties_and_bounds_of_filters_by_hand():
    assert kept(top_k=3) == pytest.approx([0.5, 0.25, 0.125, 0.125])  # a tie is kept
    assert kept(top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert kept(top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert sorted(kept(top_p=0.8)) == pytest.approx([0, 1 / 7, 2 / 7, 4 / 7])  # of a tie, one
    assert kept(min_p=1.0) == pytest.approx([1, 0, 0, 0])
    # A flat distribution needs more than the tokens that are sorted first.
    flat = kept(torch.zeros(4 * FIRST_SORTED), top_p=0.75)
    assert sum(p > 0 for p in flat) == 3 * FIRST_SORTED


@each_row("seed", range(8))
def test_all_filters_together_are_transformers(seed):
    rng = random.Random(seed)
    vocab = rng.choice([5, 97, 3 * FIRST_SORTED])
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * rng.choice([1, 5])
    tokens = [rng.randrange(vocab) for _ in range(9)]
    settings = {
        "temperature": rng.uniform(0.3, 2),
        "top_k": rng.choice([1, 40, 2 * FIRST_SORTED]),
        "top_p": rng.choice([0.3, 0.9, 0.999]),
        "min_p": rng.choice([0.001, 0.05]),
        "repetition_penalty": rng.choice([0.8, 1.3]),
    }
    scores = logits[None].double()
    for process in (
        RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]),
        TemperatureLogitsWarper(settings["temperature"]),
        TopKLogitsWarper(settings["top_k"]),
        TopPLogitsWarper(settings["top_p"]),
        MinPLogitsWarper(settings["min_p"]),
    ):
        scores = process(torch.tensor([tokens]), scores)
    assert kept(logits, tokens, **settings) == pytest.approx(
        scores[0].softmax(0).tolist(), abs=1e-6
    )


@each_row("settings", [{}, {"temperature": 0.7, "top_k": 6}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_tokens_are_drawn_with_their_probabilities(settings):
    logits = torch.randn(10, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(**settings)
    generator = random.Random(2)
    draws = 4000
    counts = torch.zeros(10)
    for _ in range(draws):
        counts[choose(logits, params, [], generator)] += 1
    expected = probabilities(logits, params)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], draws * expected[possible]).pvalue > 0.01


@each_row("number", [0.0, math.nextafter(1, 0)])
def test_no_rounding_leads_past_the_tokens_that_are_possible(number):
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(top_k=90)
    for _ in range(200):
        logits = torch.randn(101, generator=generator)
        logits[0] = logits[-1] = -math.inf
        token = choose(logits, params, [], SimpleNamespace(random=lambda: number))
        assert token < 101 and probabilities(logits, params)[token] > 0


def test_at_temperatures_of_zero_or_near_it():
    for temperature in (0, 1e-300, 1e-9):
        params = SamplingParams(temperature=temperature)
        assert choose(1000 * HALVES, params, [], random.Random(0)) == 0
    logits = torch.tensor([3.0, 2.5])
    assert chosen(logits, [0], 1, repetition_penalty=2.0) == 1
    for name in ("frequency_penalty", "presence_penalty"):  # of new tokens, not of the prompt's
        assert chosen(logits, [0], 1, **{name: 1.0}) == 0
        assert chosen(logits, [0, 0], 1, **{name: 1.0}) == 1


def chosen(logits, tokens, prompt_tokens, **settings):
    params = SamplingParams(temperature=0, **settings)
    return choose(logits, params, tokens, random.Random(0), prompt_tokens=prompt_tokens)


@each_row("wrong", [math.nan, math.inf])
@each_row("settings", [{}, {"temperature": 0}, {"temperature": 0, "top_k": 1}])
def test_logits_that_are_not_finite_are_an_error(wrong, settings):
    logits = torch.tensor([1.0, wrong, 0.0])
    with pytest.raises(ValueError, match="the logits have NaN or infinity"):
        choose(logits, SamplingParams(**settings), [], random.Random(0))
    for top in (0, 2):
        with pytest.raises(ValueError, match="the logits have NaN or infinity"):
            log_probability(logits, 0, top)


def test_biases_and_penalties_by_hand():
    """Token 0: bias 1, twice generated; token 1: once in the prompt and once generated."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    settings = {"frequency_penalty": 0.5, "presence_penalty": 0.25, "logit_bias": {0: 1, 3: -2.0}}
    tokens = [1, 2, 0, 0, 1]  # the first two are the prompt
    chances = probabilities(logits, SamplingParams(**settings), tokens, prompt_tokens=2)
    by_hand = torch.tensor([2 + 1 - 2 * 0.5 - 0.25, 1 - 0.5 - 0.25, 0.0, -1 - 2])
    assert chances.tolist() == pytest.approx(by_hand.softmax(0).tolist())
    # With a repetition penalty of 2, after the biases and before the others; the prompt counts.
    settings["repetition_penalty"] = 2.0
    chances = probabilities(logits, SamplingParams(**settings), tokens, prompt_tokens=2)
    by_hand = torch.tensor([3 / 2 - 1.25, 1 / 2 - 0.75, 0.0, -3.0])
    assert chances.tolist() == pytest.approx(by_hand.softmax(0).tolist())


def test_log_probabilities_are_the_models_own():
    entry = log_probability(HALVES, 2, top=2)
    assert entry.token == 2 and entry.logprob == pytest.approx(math.log(0.125))
    assert [token for token, _ in entry.top] == [0, 1]
    assert [value for _, value in entry.top] == pytest.approx([math.log(0.5), math.log(0.25)])
    assert log_probability(HALVES, 0, top=0).top == ()


@each_row(
    ("name", "wrong"),
    [
        ("max_tokens", [0, -1, 1.5, True, "3"]),
        ("temperature", [-0.1, math.nan, math.inf, 10**400, "1", None, True]),
        ("top_k", [-1, 1.0, None]),
        ("top_p", [0, 1.01, math.nan]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, -1.0, math.inf]),
        ("frequency_penalty", [-2.1, 2.1, math.nan, True]),
        ("presence_penalty", [-2.1, 2.1, math.inf, "1"]),
        ("logit_bias", [{0: 101}, {0: math.nan}, {-1: 1}, {"0": 1}, dict.fromkeys(range(1025), 1)]),
        ("seed", [1.0, "a", True]),
        ("stop", ["", [""], [1], 5, ["a", None]]),
        ("ignore_eos", [1, None]),
        ("logprobs", [-1, 21, True]),
        ("prompt_logprobs", [-1, 21]),
        ("n", [0, 1.0]),
        ("priority", [-1]),
        ("cache_salt", ["", "a" * 257, 5, b"secret", ["a"], True]),
        ("guide", ["[0-9]+", {"type": "object"}, False]),
    ],
)
def test_bad_parameters_are_named(name, wrong):
    for value in wrong:
        with pytest.raises(ValueError, match=f"^{name} is .*: expected "):
            SamplingParams(**{name: value})


def test_other_forms_of_parameters():
    assert SamplingParams(seed=-(10**400), top_k=10**400).top_k == 10**400
    assert SamplingParams(stop="a").stop == SamplingParams(stop=["a"]).stop == ("a",)
    with pytest.raises(ValueError, match="logit_bias has the token 259: expected ids from 0 to 2"):
        SamplingParams(logit_bias={1: 1, 259: 1}).check_biases(259)
