"""The engine on the tiny model: the same tokens alone, in a batch, preempted, forked."""

import math

import pytest
import torch

from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.kv_cache import recompute
from course_pkg.serving.request import Request
from course_pkg.serving.sampling import SamplingParams
from tests.serving.engines import change_logits, random_decoder
from tests.tables import each_row

MODEL, TOKENIZER = load("tiny")
DECODER = Decoder.from_transformers(MODEL)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def new_engine(blocks=64, model=MODEL, **options):
    """An engine whose blocks hold NaN, so that a read of an unwritten slot shows."""
    engine = Engine(model, TOKENIZER, **{"blocks": blocks, "block_size": 4} | options)
    for tensor in (
        tensor for layer in [*engine.runner.caches, *engine.runner.host] for tensor in layer
    ):
        tensor.fill_(math.nan)
    return engine


def prompts(count, seed=0):
    """Random prompts of 1 to 40 bytes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 41, (count,), generator=generator).tolist()
    return [torch.randint(256, (size,), generator=generator).tolist() for size in sizes]


def alone(prompt, new=12, model=DECODER):
    return recompute(model, torch.tensor([prompt]), new)[0].tolist()


def tokens(requests):
    return [completion.tokens for request in requests for completion in request.completions]


def finish(engine):
    """Step until nothing is left, also no block, sample or stream; all chunks."""
    chunks = []
    while engine.requests:
        chunks += engine.step()
    check_empty(engine)
    return chunks


def watch(engine):
    """The steps that its scheduler makes from now on."""
    steps = []
    schedule = engine.scheduler.schedule

    def keep():
        steps.append(schedule())
        return steps[-1]

    engine.scheduler.schedule = keep
    return steps


def check_empty(engine):
    assert engine.step() == []
    pool = engine.scheduler.block_manager.pool
    assert pool.num_free == len(pool.blocks) and not engine.scheduler.has_work
    assert not engine.requests and not engine._completions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 1, "blocks": 256},
        {"token_budget": 8, "max_sequences": 8},  # chunks
        {"blocks": 15, "token_budget": 64},  # preempts
        {"blocks": 15, "token_budget": 64, "swap_blocks": 40},
        {"prefix_cache": False, "max_sequences": 3},
    ],
)
def test_greedy_tokens_are_those_of_each_prompt_alone(options):
    model = random_decoder(3, None).double()  # so that nothing is a tie
    engine = new_engine(model=model, **options)
    inputs = prompts(9)
    steps = watch(engine)
    requests = engine.generate(inputs, GREEDY)
    assert tokens(requests) == [alone(prompt, model=model) for prompt in inputs]
    assert any(step.preempted for step in steps) or options.get("blocks") != 15
    assert any(step.swap_in for step in steps) == ("swap_blocks" in options)
    assert {c.finish_reason for request in requests for c in request.completions} == {"length"}
    check_empty(engine)


def test_a_random_sample_survives_preemption_and_company():
    params = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, temperature=1.5, top_k=50)
    inputs = prompts(9)
    expected = [tokens(new_engine().generate([prompt], params))[0] for prompt in inputs]
    assert tokens(new_engine(15).generate(inputs, params)) == expected
    assert tokens(new_engine(15, swap_blocks=40).generate(inputs, params)) == expected
    assert tokens(new_engine(token_budget=8, max_sequences=4).generate(inputs, params)) == expected


def test_samples_differ_and_repeat_with_their_seed():
    params = SamplingParams(n=4, seed=1, max_tokens=8, ignore_eos=True)
    [once], [again] = (new_engine().generate([[1, 2, 3, 4, 5]], params) for _ in range(2))
    assert tokens([once]) == tokens([again]) and len(set(map(tuple, tokens([once])))) == 4
    # One sample alone is the first of four; they need not all run at once.
    single = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    assert tokens(new_engine().generate([[1, 2, 3, 4, 5]], single)) == tokens([once])[:1]
    narrow = new_engine(max_sequences=2, token_budget=2)
    [request] = narrow.generate([[1, 2, 3, 4, 5]], params)
    assert tokens([request]) == tokens([once]) and request.hit_tokens == 0  # of the first sample
    check_empty(narrow)
    unseeded = new_engine().generate([[1, 2]] * 2, SamplingParams(max_tokens=8, ignore_eos=True))
    assert tokens(unseeded)[0] != tokens(unseeded)[1]


def test_every_sample_of_a_prompt_continues_its_own_tokens():
    params = SamplingParams(n=5, seed=2, max_tokens=9, ignore_eos=True, logprobs=0)
    for options in ({}, {"blocks": 8}, {"blocks": 8, "swap_blocks": 9}, {"max_sequences": 2}):
        [request] = new_engine(**options).generate([[7, 8, 9, 10, 11, 12]], params)
        for completion in request.completions:
            whole = [*request.prompt, *completion.tokens]
            with torch.no_grad():
                expected = DECODER(torch.tensor([whole]))[0].log_softmax(-1)  # (tokens, vocab)
            expected = [expected[place - 1, whole[place]].item() for place in range(6, len(whole))]
            logprobs = [entry.logprob for entry in completion.logprobs]
            assert logprobs == pytest.approx(expected, abs=1e-5)


def test_log_probabilities_of_new_tokens_and_of_the_prompt():
    params = SamplingParams(
        max_tokens=6, logprobs=3, prompt_logprobs=2, temperature=0, ignore_eos=True
    )
    preempts = {"blocks": 15, "token_budget": 64, "prefix_cache": False}
    for options in ({}, {"token_budget": 4, "max_sequences": 4}, preempts):
        engine = new_engine(**options)
        inputs = prompts(9)
        engine.generate(inputs, GREEDY)  # what is cached must not matter
        for prompt, request in zip(inputs, engine.generate(inputs, params), strict=True):
            whole = prompt + request.completions[0].tokens
            with torch.no_grad():
                expected = DECODER(torch.tensor([whole]))[0].log_softmax(-1)  # (tokens, vocab)
            scored = [*request.prompt_logprobs, *request.completions[0].logprobs]
            assert len(scored) == len(whole) and scored[0] is None
            for place in range(1, len(whole)):
                entry = scored[place]
                row = expected[place - 1]
                top = row.topk(2 if place < len(prompt) else 3)
                assert entry.token == whole[place]
                assert entry.logprob == pytest.approx(row[whole[place]].item(), abs=1e-5)
                assert [t for t, _ in entry.top] == top.indices.tolist()


def test_a_prompt_that_is_computed_again_is_scored_once():
    request = Request(1, [5, 6, 7], SamplingParams(prompt_logprobs=0))
    for start in (0, 0, 1):  # preempted after its first chunk of one token
        request.score_prompt(start, torch.zeros(1, 259))
    assert [entry.token for entry in request.prompt_logprobs[1:]] == [6, 7]


def with_text(text, eos=TOKENIZER.eos_token_id, **settings):
    """An engine whose model says `text` after "?", one byte at a time: for stop strings."""
    engine = new_engine()
    engine.eos = frozenset([eos])
    said = [*text.encode(), TOKENIZER.eos_token_id]

    def run(step, manager):
        rows = {sequence: slice(row, row + 1) for row, sequence in enumerate(step.sampling)}
        best = torch.tensor([said[len(sequence.new_tokens)] for sequence in rows], dtype=torch.long)
        return rows, torch.nn.functional.one_hot(best, 259).float()

    engine.runner.run = run
    params = SamplingParams(temperature=0, **{"max_tokens": 50} | settings)
    return engine, list(engine.stream("?", params))


@each_row(
    ("settings", "text", "reason", "count"),
    [
        ({}, "né, end. Go", "stop", 13),  # 12 bytes and the end token
        ({"eos": ord("G")}, "né, end. ", "stop", 11),  # also an end token that is a character
        ({"eos": ord("G"), "ignore_eos": True, "max_tokens": 12}, "né, end. Go", "length", 12),
        ({"max_tokens": 2}, "n\ufffd", "length", 2),
        ({"stop": ["end"]}, "né, ", "stop", 8),
        ({"stop": ["endless"]}, "né, end. Go", "stop", 13),
        ({"stop": "é"}, "n", "stop", 3),
        ({"stop": "end", "max_tokens": 8}, "né, ", "stop", 8),
        ({"stop": "end", "max_tokens": 7}, "né, en", "length", 7),
    ],
)
def test_text_ends_where_it_should(settings, text, reason, count):
    engine, chunks = with_text("né, end. Go", **settings)
    assert "".join(chunk.text for chunk in chunks) == text == chunks[-1].completion.text
    assert chunks[-1].completion.finish_reason == reason
    assert len(chunks) == len(chunks[-1].completion.tokens) == count
    check_empty(engine)


def test_a_stop_string_may_end_one_sample_and_leave_the_others():
    engine = new_engine()
    params = SamplingParams(n=8, seed=0, max_tokens=30, ignore_eos=True)
    [request] = engine.generate([[1, 2]], params)
    stop = TOKENIZER.decode(request.completions[3].tokens[:1])
    stops = SamplingParams(n=8, seed=0, max_tokens=30, ignore_eos=True, stop=stop)
    [again] = engine.generate([[1, 2]], stops)
    for free, stopped in zip(request.completions, again.completions, strict=True):
        assert stopped.text == free.text.split(stop)[0]
        assert stopped.tokens == free.tokens[: len(stopped.tokens)]
        assert stopped.finish_reason == ("stop" if stop in free.text else "length")
    check_empty(engine)


def test_several_streams_take_turns_and_may_be_closed():
    engine = new_engine()
    first, second, closed = (engine.stream(prompt, GREEDY) for prompt in ([1, 2], [3], [4, 5]))
    chunk = next(closed)
    closed.close()
    assert chunk.completion.finish_reason == "abort" and chunk.completion.tokens == [chunk.token]
    pairs = list(zip(first, second, strict=True))
    assert [pair[0].token for pair in pairs] == alone([1, 2])
    assert [pair[1].token for pair in pairs] == alone([3])
    check_empty(engine)


def spoil(rows, logits):
    """Make the last logits of requests with the prompt [1, 2] NaN, as a damaged adapter would."""
    for span in [span for sequence, span in rows.items() if sequence.prompt == [1, 2]][-1:]:
        logits[span] = math.nan


@each_row("steps", [0, 1])
@each_row("fields", [{"seed": 0}, {"temperature": 0}, {"logprobs": 2, "prompt_logprobs": 2}])
def test_a_request_whose_logits_are_nan_ends_alone(fields, steps):
    engine = new_engine()
    drawn = SamplingParams(max_tokens=4, n=3, **fields)
    other = engine.add([3], GREEDY)
    damaged = engine.add([1, 2], drawn)
    for _ in range(steps):
        engine.step()
    change_logits(engine, spoil)
    finish(engine)
    assert [sample.finish_reason for sample in damaged.completions] == ["error"] * 3
    assert [len(sample.tokens) for sample in damaged.completions] == [steps] * 3
    assert "the logits have NaN" in str(damaged.error) and other.error is None
    assert tokens([other]) == [alone([3])]
    with pytest.raises(ValueError, match="the logits have NaN"):
        engine.generate([[3], [1, 2]], drawn)
    with pytest.raises(ValueError, match="the logits have NaN"):
        list(engine.stream([1, 2], drawn))
    check_empty(engine)


@each_row("error", [MemoryError, KeyboardInterrupt])
def test_a_failed_step_ends_what_ran_and_the_engine_goes_on(error):
    engine = new_engine(max_sequences=1)
    running = engine.add([1, 2], GREEDY)
    waiting = engine.add([3], GREEDY)
    engine.step()
    run = engine.runner.run

    def broken(step, manager):
        raise error

    engine.runner.run = broken
    with pytest.raises(error):
        engine.step()
    assert running.done and running.completions[0].finish_reason == "error"
    engine.runner.run = run
    finish(engine)
    assert tokens([waiting]) == [alone([3])]
    engine.runner.run = broken
    with pytest.raises(error):
        engine.generate(prompts(3), GREEDY)
    engine.runner.run = run
    check_empty(engine)


def test_a_decoder_and_memory_in_bytes_can_be_given_and_max_tokens_none_means_all_that_fit():
    engine = new_engine(None, model=DECODER, memory_bytes=100_000)
    # 2 (keys and values) · 2 layers · 2 heads · 16 · 4 tokens · 4 bytes = 2048 per block
    assert len(engine.scheduler.block_manager.pool.blocks) == 100_000 // 2048 - 1
    held = sum(tensor.nbytes for cache in engine.runner.caches for tensor in cache)
    assert held == 100_000 // 2048 * 2048
    assert tokens(engine.generate([[1, 2, 3]], GREEDY)) == [alone([1, 2, 3])]
    [request] = new_engine(4).generate([[1] * 5], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(request.completions[0].tokens) == 4 * 4 + 1 - 5
    assert new_engine().add("a\ud800").prompt == [97, 63]  # a lone surrogate is a question mark


@each_row(
    ("prompt", "options", "message"),
    [
        ("", {}, "the prompt is '': expected a text or a list"),
        ([1, 259], {}, "ids from 0 to 258"),
        ([-1], {}, "ids from 0 to 258"),
        ([True], {}, "ids from 0 to 258"),
        (None, {}, "the prompt is None: expected a text or a list"),
        ([1] * 2040, {"params": SamplingParams(max_tokens=9)}, "takes 2048 together; shorten"),
        ([1] * 3000, {"params": SamplingParams(max_tokens=None)}, "takes 2048 together; shorten"),
        ([1] * 300, {}, "there are 64; shorten it, or give the engine more blocks"),
        ([1], {"adapter": "law"}, r"there is no adapter 'law'; there are \[\]"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(prompt, options, message):
    engine = new_engine()
    with pytest.raises(ValueError, match=message):
        engine.add(prompt, **options)
    check_empty(engine)


def test_urgent_requests_come_first():
    engine = new_engine(max_sequences=1)
    late = engine.add([1], SamplingParams(max_tokens=2, priority=1))
    soon = engine.add([2], SamplingParams(max_tokens=2))
    while not soon.done:
        engine.step()
    assert not late.completions[0].tokens


def test_bad_sizes_models_and_lists_are_refused():
    for sizes in ({"blocks": None}, {"memory_bytes": 10**6}):
        with pytest.raises(ValueError, match="give one of the two"):
            new_engine(**sizes)
    with pytest.raises(ValueError, match="blocks must be an integer of at least 1, got -1"):
        new_engine(None, memory_bytes=100)
    model = load("tiny").model
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ValueError, match="RoPE is dynamic, which depends on the longest sequence"):
        new_engine(model=model)
    engine = new_engine()
    with pytest.raises(TypeError, match="give a list of prompts"):
        engine.generate("abc")
    with pytest.raises(ValueError, match="2 prompts, and a list of 3 params or adapters"):
        engine.generate([[1], [2]], [GREEDY] * 3)
    with pytest.raises(ValueError, match="ids from 0 to 258"):
        engine.generate([[1], [300]], GREEDY)
    check_empty(engine)


@pytest.mark.gpu
def test_on_a_gpu_the_tokens_are_the_same():
    inputs = prompts(9)
    expected = [alone(prompt) for prompt in inputs]
    for options in ({}, {"blocks": 15, "swap_blocks": 40}):
        engine = new_engine(model=load("tiny", device="cuda").model, **options)
        assert tokens(engine.generate(inputs, GREEDY)) == expected
