"""A local model as a judge: exact probabilities of options with every tokenizer."""

import math

import pytest
import torch

from course_pkg.studies.judge.geval import JudgeError
from course_pkg.studies.judge.local import LocalJudge
from tests.studies.plain_pass import log_prob


def chat(tokenizer, prompt, start):
    turns = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) + start


def expected_probability(model, tokenizer, prompt, start, spellings):
    text = chat(tokenizer, prompt, start)
    return sum(math.exp(log_prob(model, tokenizer, text, spelling)) for spelling in spellings)


def test_an_options_probability_sums_its_spellings_with_and_without_a_blank(tiny):
    found = LocalJudge(*tiny).option_probabilities("Is it?", "Answer:", ["yes", "no"])
    for option in ("yes", "no"):  # three and two tokens in a byte tokenizer
        expected = expected_probability(*tiny, "Is it?", "Answer:", [option, f" {option}"])
        assert found[option] == pytest.approx(expected, rel=1e-4)


def test_the_probability_of_ten_is_subtracted_from_that_of_one(tiny):
    options = [str(score) for score in range(1, 11)]
    found = LocalJudge(*tiny).option_probabilities("Rate it.", "Score:", options)
    ten = expected_probability(*tiny, "Rate it.", "Score:", ["10", " 10"])
    one = expected_probability(*tiny, "Rate it.", "Score:", ["1", " 1"])
    assert found["10"] == pytest.approx(ten, rel=1e-4)
    assert found["1"] == pytest.approx(one - ten, rel=1e-4)
    assert 0 < sum(found.values()) <= 1 and min(found.values()) >= 0


def test_a_model_without_a_chat_template_reads_the_plain_prompt(tiny):
    tiny.tokenizer.chat_template = None
    found = LocalJudge(*tiny).option_probabilities("Rate it.", "Score:", ["3", "4"])
    text = "Rate it.\nScore:"
    expected = sum(math.exp(log_prob(*tiny, text, spelling)) for spelling in ("3", " 3"))
    assert found["3"] == pytest.approx(expected, rel=1e-4)


def test_writing_is_repeatable_and_does_not_change_torchs_random_state(tiny):
    judge = LocalJudge(*tiny)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = judge.write("Go on.", n=3, max_tokens=6, temperature=1.0, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert one == judge.write("Go on.", n=3, max_tokens=6, temperature=1.0, seed=1)
    assert one != judge.write("Go on.", n=3, max_tokens=6, temperature=1.0, seed=2)


def test_greedy_writing_equals_generate(tiny):
    model, tokenizer = tiny
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    inputs = tokenizer(chat(tokenizer, "Go on.", "So"), return_tensors="pt")
    pad = tokenizer.pad_token_id
    whole = model.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=pad)
    expected = whole[0, inputs.input_ids.shape[1] :]
    found = LocalJudge(model, tokenizer).write("Go on.", "So", n=2, max_tokens=12)
    assert found == [tokenizer.decode(expected, skip_special_tokens=True)] * 2


def test_samples_are_drawn_with_the_models_probabilities(tiny):
    judge = LocalJudge(*tiny)
    with torch.no_grad():  # make two tokens likely, so that few samples are enough
        tiny.model.lm_head.weight.mul_(8)
    text = chat(tiny.tokenizer, "Go on.", "")
    ids = tiny.tokenizer(text, return_tensors="pt").input_ids
    weights = tiny.model(ids).logits[0, -1].softmax(-1)
    weight, token = weights[:128].max(-1)  # a byte that is an ASCII character
    replies = judge.write("Go on.", n=400, max_tokens=1, temperature=1.0, seed=0)
    share = replies.count(chr(token)) / 400
    deviation = (weight * (1 - weight) / 400).sqrt().item()
    assert abs(share - weight.item()) < 4 * deviation + 1e-9


def test_writing_stops_at_the_end_of_the_turn(tiny):
    model, tokenizer = tiny
    end = tokenizer.eos_token_id
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all logits are 0 ...
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
        model.lm_head.bias[end] = 5.0  # ... except that of the end token
    assert LocalJudge(model, tokenizer).write("Go on.", max_tokens=50) == [""]


def test_long_prompts_and_a_swapped_tokenizer_raise_an_error(tiny):
    tiny.model.config.max_position_embeddings = 64
    judge = LocalJudge(*tiny)
    with pytest.raises(JudgeError, match="at most 64; judge a shorter text"):
        judge.option_probabilities("x" * 100, "Score:", ["3", "4"])
    with pytest.raises(JudgeError, match="at most 64"):
        judge.write("x" * 100)
    with pytest.raises(TypeError, match="LocalJudge needs a model and a tokenizer, got"):
        LocalJudge(tiny.tokenizer, tiny.model)


def test_an_invalid_temperature_raises_an_error_and_is_not_greedy(tiny):
    for temperature in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature must be at least 0 and finite"):
            LocalJudge(*tiny).write("Go on.", temperature=temperature)


def test_a_judge_that_reuses_its_prompt_gives_the_same_probabilities_for_fewer_tokens(
    tiny, monkeypatch
):
    prompts = ["Rate it. Tea.", "Rate it. Tea and milk.", "Rate it.", "Rate it.", "Another task."]
    fresh = LocalJudge(*tiny)
    expected = [fresh.option_probabilities(p, "Score:", list("123")) for p in prompts]
    computed = []
    forward = tiny.model.forward

    def counting(ids, **settings):
        computed.append(ids.shape[1])
        return forward(ids, **settings)

    monkeypatch.setattr(tiny.model, "forward", counting)
    judge = LocalJudge(*tiny, reuse_prompt=True)
    for prompt, right in zip(prompts, expected, strict=True):
        found = judge.option_probabilities(prompt, "Score:", list("123"))
        assert found == pytest.approx(right, rel=1e-4)
    lengths = [len(judge._encode(judge._text(prompt, "Score:"))) for prompt in prompts]
    assert computed[0] == lengths[0]
    assert sum(computed) < sum(lengths)
    assert 1 in computed  # the repeated prompt


def test_a_judge_that_reuses_its_prompt_forgets_it_when_the_model_fails(tiny, monkeypatch):
    judge = LocalJudge(*tiny, reuse_prompt=True)
    right = judge.option_probabilities("Rate it. Tea.", "Score:", ["1", "2"])

    def fail(*_arguments, **_settings):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(tiny.model, "forward", fail)
        judge.option_probabilities("Rate it. Milk.", "Score:", ["1", "2"])
    assert judge.option_probabilities("Rate it. Tea.", "Score:", ["1", "2"]) == right
