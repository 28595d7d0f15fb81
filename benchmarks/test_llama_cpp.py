"""llama.cpp itself loads our files, and writes the tokens that transformers writes.

It runs by hand, since it needs a prebuilt llama.cpp, xllamacpp, in an environment of its own:

    python -m venv .venv-llama-cpp
    .venv-llama-cpp/bin/python -m pip install --no-deps xllamacpp
    python -m pytest benchmarks/test_llama_cpp.py

COURSE_LLAMA_CPP names the Python of another environment. Verified with xllamacpp 2026.10.11549.

What was found with SmolLM2, 20 prompts with 50 tokens each, on one thread, with keys and values in
fp32 (`greedy_agreement`):
- F32: all 1000 tokens are those of transformers; log-probabilities differ by at most 2.5e-4 nats.
- F16: all are those of a transformers model with the file's weights. With the fp32 weights, 19 of
  20 answers are the same; the other leaves them at token 37, where the gap is 0.003.
- Q8_0 and Q4_0: 4 and 5 of 20 answers are those of a transformers model with the file's weights.
  The others leave them after 18 and 14 tokens (medians), at gaps of at most 0.29. The page
  deployment/edge says why.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.deployment.export.gguf_model import read_weights, write_gguf_model
from tests.deployment.export.test_gguf_model import TEXTS, random_llama, trained_tokenizer

ROOT = Path(__file__).parent.parent
JUDGE = Path(__file__).with_name("llama_cpp_judge.py")
TOPICS = ("the sea", "a prime number", "how to boil an egg", "Python lists", "the Roman Empire")
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ],
]


def llama_cpp_python():
    """The Python of the environment with xllamacpp, and why there is none."""
    python = Path(os.environ.get("COURSE_LLAMA_CPP", ROOT / ".venv-llama-cpp/bin/python"))
    if not python.is_file():
        return python, f"there is no {python}: this file's first lines say how to make it"
    tried = subprocess.run([python, "-c", "import xllamacpp"], capture_output=True, text=True)
    if tried.returncode:
        return python, f"{python} cannot import xllamacpp: {tried.stderr.strip()[-200:]}"
    return python, None


PYTHON, MISSING = llama_cpp_python()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def judge(**request):
    """llama.cpp's answer."""
    done = subprocess.run(
        [PYTHON, JUDGE], input=json.dumps(request), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index('{"quantized"') :])


def require_texts_of(tokenizer, answer):
    """The ids of TEXTS and the prompts of CHATS are the tokenizer's."""
    assert answer["ids"] == [tokenizer(text).input_ids for text in TEXTS]
    options = {"tokenize": False, "add_generation_prompt": True}
    prompts = [tokenizer.apply_chat_template(chat, **options) for chat in CHATS]
    assert answer["prompts"] == prompts


def difference(model, prompt, step):
    """The largest difference of a log-probability, of those that llama.cpp gives for one step."""
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    return max(abs(expected[int(number)].item() - theirs) for number, theirs in step.items())


def greedy_agreement(model, prompts, generated):
    """For each prompt, where llama.cpp's tokens first leave the model's greedy choice, and by how
    much the model prefers its own token there; None for all the same."""
    leaves = []
    for prompt, tokens in zip(prompts, (answer["tokens"] for answer in generated), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        others = (logits.argmax(-1) != torch.tensor(tokens)).nonzero().flatten().tolist()
        if others:
            first = others[0]
            gap = logits[first].max() - logits[first, tokens[first]]
            leaves.append((first, gap.item()))
        else:
            leaves.append(None)
    return leaves


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SETTINGS = {
    "as SmolLM2": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "every head its own keys": {"num_key_value_heads": 4},
    "linear RoPE": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "RoPE of Llama 3": {"rope_parameters": LLAMA3},
    "rows without tokens": {"rows": 310},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_random_llama_in_f32_has_the_same_probabilities(name, tmp_path):
    tokenizer = trained_tokenizer()
    settings = dict(SETTINGS[name])
    model = random_llama(settings.pop("rows", len(tokenizer)), **settings)
    write_gguf_model(model, tokenizer, tmp_path / "a.gguf", "F32")
    prompt = [1, *range(3, 120), 2]
    request = {"texts": TEXTS, "chats": CHATS, "prompts": [prompt], "top": 300}
    request["token"] = tokenizer("a").input_ids[0]
    answer = judge(model=str(tmp_path / "a.gguf"), **request)
    [step] = answer["generated"][0]["logprobs"]
    assert len(step) == 300 and difference(model, prompt, step) < 1e-3
    require_texts_of(tokenizer, answer)


def test_blocks_equal_those_of_llama_cpps_own_code_byte_for_byte():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 96, generator=generator) * torch.logspace(-6, 3, 64)[:, None]
    rows[0] = 0
    rows[1, :32] = 1.0  # ties
    rows[2, ::2] = -rows[2, 1::2]
    answer = judge(rows=rows.tolist())
    for name in ("Q4_0", "Q8_0"):
        mine = write_gguf(rows, name).codes
        assert [bytes(row.tolist()).hex() for row in mine] == [
            blocks[name] for blocks in answer["quantized"]
        ]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("type", ["F32", "F16", "Q8_0", "Q4_0"])
def test_smollm2_writes_transformers_greedy_tokens(type, tmp_path):
    """In 8 and 4 bits: the first other token is one that the model finds almost as good."""
    from course_pkg.lm.load import load

    model, tokenizer = load("smollm2-135m")
    path = tmp_path / "a.gguf"
    write_gguf_model(model, tokenizer, path, type, "SmolLM2")
    chats = [[{"role": "user", "content": f"Tell me about {topic}."}] for topic in TOPICS]
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True).input_ids for chat in chats
    ]
    answer = judge(model=str(path), texts=TEXTS, chats=CHATS, prompts=prompts, new=50)
    require_texts_of(tokenizer, answer)
    model.load_state_dict(read_weights(path), strict=False)
    agreement = greedy_agreement(model, prompts, answer["generated"])
    if type in ("F32", "F16"):
        assert agreement == [None] * len(prompts)
    else:
        assert all(place is None or place[1] < 0.5 for place in agreement)
    if type == "F32":
        written = model.generate(
            torch.tensor([prompts[0]]), max_new_tokens=50, do_sample=False, eos_token_id=[-1]
        )
        assert written[0, len(prompts[0]) :].tolist() == answer["generated"][0]["tokens"]
