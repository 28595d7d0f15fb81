"""The engine with guides: each text matches, and is the same alone, in company, and preempted."""

import json
import re

import pytest
import torch

from course_pkg.lm.load import load
from course_pkg.serving.constrained.decoding import generate_greedily
from course_pkg.serving.constrained.guide import FINISHED, json_schema_guide, regex_guide
from course_pkg.serving.constrained.vocabulary import Vocabulary, vocabulary_of
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams, choose, probabilities
from tests.serving.constrained.regexes import PERSON
from tests.serving.engines import change_logits
from tests.tables import each_row

MODEL, TOKENIZER = load("tiny")
VOCABULARY = vocabulary_of(TOKENIZER)
PATTERN = r"[a-c]{3,9}-(\d\d|[xyz]){4}"
DATE = r"\d{4}-\d{2}"
GUIDES = [regex_guide(PATTERN, VOCABULARY), None, json_schema_guide(PERSON, VOCABULARY)]
GUIDES += [regex_guide(DATE, VOCABULARY)]
DRAWN = {"max_tokens": 60, "seed": 4, "temperature": 1.5, "logprobs": 2}


def new_engine(blocks=256, **options):
    return Engine(MODEL, TOKENIZER, **{"blocks": blocks, "block_size": 4} | options)


def asked(count=8):
    """Prompts, and for each its parameters; the guides in turn, half of them greedy."""
    prompts = [list(range(number, number + 3 + 5 * (number % 3))) for number in range(count)]
    params = []
    for number in range(count):
        fields = DRAWN if number < count // 2 else {"max_tokens": 60, "temperature": 0}
        params.append(SamplingParams(**fields, guide=GUIDES[number % len(GUIDES)]))
    return prompts, params


def written(requests):
    return [(c.tokens, c.finish_reason) for request in requests for c in request.completions]


def check_text(params, completion):
    assert completion.finish_reason == "stop" and completion.state == FINISHED
    if params.guide is GUIDES[0]:
        assert re.fullmatch(PATTERN, completion.text, re.ASCII)
    elif params.guide is GUIDES[2]:
        person = json.loads(completion.text)
        assert list(person) == ["name", "age"] and 0 <= person["age"] <= 120
        assert re.fullmatch("[A-Z][a-z]{2,7}", person["name"])
    else:
        assert re.fullmatch(DATE, completion.text, re.ASCII)


@pytest.fixture(scope="module")
def alone():
    """What each request writes in an engine of its own."""
    requests = []
    for prompt, params in zip(*asked(), strict=True):
        requests += new_engine().generate([prompt], params)
    return written(requests)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token_budget": 8, "max_sequences": 8},  # chunks of prompts
        {"blocks": 32},  # preempts
        {"blocks": 32, "swap_blocks": 64},
    ],
)
def test_texts_match_and_are_those_of_each_request_alone(alone, options):
    prompts, params = asked()
    engine = new_engine(**options)
    requests = engine.generate(prompts, params)
    assert written(requests) == alone
    assert bool(engine.scheduler.preemptions) == (options.get("blocks") == 32)
    for own_params, request in zip(params, requests, strict=True):
        if own_params.guide is not None:
            check_text(own_params, request.completions[0])
        else:
            assert request.completions[0].state is None


def test_greedy_tokens_are_those_of_the_loop_without_an_engine():
    guide = GUIDES[2]
    [request] = new_engine().generate(
        ["Hi"], SamplingParams(max_tokens=60, temperature=0, guide=guide)
    )
    loop = generate_greedily(MODEL, TOKENIZER("Hi").input_ids, guide, 60, jumps=False)
    assert request.completions[0].tokens == loop.tokens


@each_row("options", [{}, {"blocks": 16, "swap_blocks": 9}, {"max_sequences": 2}])
def test_each_of_several_samples_has_a_state_of_its_own(options):
    params = SamplingParams(**DRAWN | {"n": 5}, guide=GUIDES[0])
    [request] = new_engine(**options).generate([[7, 8, 9]], params)
    for completion in request.completions:
        check_text(params, completion)
    assert len({completion.text for completion in request.completions}) > 1


def test_a_text_that_is_cut_off_is_the_beginning_of_one_that_matches():
    engine = new_engine()
    whole, short, stopped = (
        request.completions[0]
        for request in engine.generate(
            ["ab"] * 3,
            [
                SamplingParams(temperature=0, max_tokens=60, guide=GUIDES[3]),
                SamplingParams(temperature=0, max_tokens=5, guide=GUIDES[3]),
                SamplingParams(temperature=0, max_tokens=60, guide=GUIDES[3], stop="-"),
            ],
        )
    )
    assert whole.finish_reason == "stop" and re.fullmatch(DATE, whole.text, re.ASCII)
    assert (short.text, short.finish_reason) == (whole.text[:5], "length")
    assert (stopped.text, stopped.finish_reason) == (whole.text[:4], "stop")


def test_log_probabilities_are_the_models_own():
    """The mask changes what is chosen, not what the model says about it."""
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=3, guide=GUIDES[3])
    [request] = new_engine().generate([[1, 2, 3]], params)
    [completion] = request.completions
    whole = torch.tensor([request.prompt + completion.tokens])
    with torch.no_grad():
        logprobs = MODEL(whole).logits[0].log_softmax(-1)  # (tokens, vocab)
    for place, entry in enumerate(completion.logprobs, 2):
        assert entry.logprob == pytest.approx(logprobs[place, entry.token].item(), abs=1e-4)
        assert entry.top[0][1] == pytest.approx(logprobs[place].max().item(), abs=1e-4)


def without_digits(rows, logits):
    """Make the logits of all digits -infinity for requests with the prompt [1, 2]."""
    for sequence, span in rows.items():
        if sequence.prompt == [1, 2]:
            logits[span, ord("0") : ord("9") + 1] = -torch.inf


@each_row("temperature", [0, 1])
def test_a_request_whose_allowed_tokens_are_impossible_ends_alone(temperature):
    engine = new_engine()
    params = SamplingParams(max_tokens=20, n=2, temperature=temperature, guide=GUIDES[3])
    change_logits(engine, without_digits)
    bad = engine.add([1, 2], params)
    good = engine.add([3], SamplingParams(max_tokens=20, temperature=0, guide=GUIDES[3]))
    while engine.requests:
        engine.step()
    assert [sample.finish_reason for sample in bad.completions] == ["error"] * 2 and bad.error
    check_text(good.params, good.completions[0])
    pool = engine.scheduler.block_manager.pool
    assert pool.num_free == len(pool.blocks) and not engine._completions


def test_nan_is_an_error_also_where_the_mask_hides_it():
    engine = new_engine()
    change_logits(engine, lambda rows, logits: logits[:, ord("x")].fill_(torch.nan))
    with pytest.raises(ValueError, match="the logits have NaN"):
        engine.generate(["a"], SamplingParams(guide=GUIDES[3]))


def test_a_guide_of_another_vocabulary_is_refused():
    engine = new_engine()
    assert engine.vocabulary is engine.vocabulary  # computed once
    tokens = list(VOCABULARY.tokens)
    for other in (
        Vocabulary(tokens, eos=[256]),
        Vocabulary([*tokens[1:256], b"\0", *tokens[256:]], eos=VOCABULARY.eos),
    ):
        with pytest.raises(ValueError, match="the guide is of another vocabulary"):
            engine.add("a", SamplingParams(guide=regex_guide("[0-9]", other)))
    with pytest.raises(ValueError, match="ignore_eos is True beside a guide"):
        engine.add("a", SamplingParams(guide=GUIDES[3], ignore_eos=True))
    assert not engine.requests and not engine.scheduler.has_work


def test_filters_keep_some_of_the_tokens_that_the_mask_leaves():
    """Otherwise top-k would keep the most likely tokens, of which none may be allowed."""
    logits = torch.tensor([8.0, 7.0, 2.0, 1.0])
    mask = torch.tensor([False, False, True, True])
    chances = probabilities(logits, SamplingParams(top_k=1), mask=mask)
    assert chances.tolist() == [0, 0, 1, 0]
    chances = probabilities(logits, SamplingParams(), mask=mask)
    expected = torch.tensor([2.0, 1.0]).softmax(0).tolist()
    assert chances.tolist() == pytest.approx([0, 0, *expected], abs=1e-7)
    biased = SamplingParams(temperature=0, logit_bias={0: 100, 3: 5})
    assert choose(logits, biased, [], None, mask=mask) == 3
