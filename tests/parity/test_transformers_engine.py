"""The engine's greedy tokens and texts are those of transformers' `generate`, in a mixed batch."""

import pytest
import torch

from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams

TEXTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a small", "2 + 2 ="]


def theirs(model, tokenizer, ids, new, **settings):
    ids = torch.tensor([ids])
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": tokenizer.pad_token_id}
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=new, do_sample=False, **options, **settings)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.model
def test_smollm2(smollm2):
    model, tokenizer = smollm2
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompts = [tokenizer(text).input_ids for text in [*TEXTS, chat]]
    params = [SamplingParams(temperature=0, max_tokens=new) for new in (12, 12, 12, 12, 30)]
    engine = Engine(model, tokenizer, blocks=64, token_budget=24, max_sequences=8)
    requests = engine.generate(prompts, params)
    for prompt, own_params, request in zip(prompts, params, requests, strict=True):
        [ours] = request.completions
        expected = theirs(model, tokenizer, prompt, own_params.max_tokens)
        assert ours.tokens == expected
        assert ours.text == tokenizer.decode(expected, skip_special_tokens=True)
    assert requests[-1].completions[0].finish_reason == "stop"  # at <|im_end|>


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3}])
def test_tiny(tiny, settings):
    model, tokenizer = tiny
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    engine = Engine(model, tokenizer, blocks=64, block_size=4, token_budget=24, max_sequences=3)
    requests = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=20, **settings))
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.completions[0].tokens == theirs(model, tokenizer, prompt, 20, **settings)
