import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from course_pkg.evaluation.continuation_scores import as_decoder
from course_pkg.evaluation.generation import OpenQuestion, answer_questions, score_answers
from course_pkg.evaluation.greedy import Generation, _Row, first_stop, generate_greedy
from course_pkg.evaluation.prompt_template import PromptTemplate, choose_examples
from course_pkg.lm.tiny import tiny_model, tiny_tokenizer
from tests.refusals import require_refusals

TOKENIZER = tiny_tokenizer()
PROMPTS = ["Shared beginning. One", "Shared beginning. Two and more", "Shared beginning. 3", "X"]


def sharpened():
    """A tiny model whose choices depend on the whole prompt, and are no near-ties."""
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    return model


MODEL = sharpened()


def by_transformers(model, prompt, new):
    ids = torch.tensor([TOKENIZER(prompt).input_ids])
    config = GenerationConfig(do_sample=False, max_new_tokens=new, pad_token_id=0)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return tuple(out[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize(("prompts", "batch_size"), [(PROMPTS, 3), (PROMPTS[:3], 1)])
def test_batches_write_what_transformers_writes_for_one_prompt(prompts, batch_size):
    texts = generate_greedy(
        MODEL, TOKENIZER, prompts, max_new_tokens=12, end_tokens=(), batch_size=batch_size
    )
    assert [text.tokens for text in texts] == [by_transformers(MODEL, p, 12) for p in prompts]
    assert {text.finish for text in texts} == {"length"}
    assert len({text.tokens for text in texts}) == len(prompts)  # the prompts matter


def test_a_model_that_the_decoder_cannot_run_generates_too():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = GPT2LMHeadModel(config).eval()
    assert as_decoder(model) is None
    texts = generate_greedy(model, TOKENIZER, PROMPTS, max_new_tokens=5, end_tokens=())
    assert [text.tokens for text in texts] == [by_transformers(model, p, 5) for p in PROMPTS]
    token = texts[0].tokens[2]
    [stopped] = generate_greedy(model, TOKENIZER, PROMPTS[0], max_new_tokens=5, end_tokens=[token])
    first = texts[0].tokens.index(token)
    assert (stopped.finish, stopped.tokens) == ("end", texts[0].tokens[: first + 1])


def test_a_row_that_ends_does_not_change_the_others():
    free = generate_greedy(MODEL, TOKENIZER, PROMPTS, max_new_tokens=12, end_tokens=())
    end = free[0].tokens[3]
    ended = generate_greedy(MODEL, TOKENIZER, PROMPTS, max_new_tokens=12, end_tokens=[end])
    for before, after in zip(free, ended, strict=True):
        if end in before.tokens:
            assert after.finish == "end"
            assert after.tokens == before.tokens[: before.tokens.index(end) + 1]
        else:
            assert after == before


class Pieces:
    """A tokenizer whose tokens are these texts."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, tokens, skip_special_tokens):
        return "".join(self.pieces[token] for token in tokens)


def row(pieces, stop):
    written = _Row(Pieces(*pieces), stop, frozenset())
    for token in range(len(pieces)):
        written.add(token)
    return written.generation()


def test_the_text_ends_where_the_stop_string_begins(subtests):
    for pieces, stop, text, tokens in (
        (["4", "2.\n\nQ", "x"], ["\n\n"], "42.", 2),  # begins inside a token
        (["42", "\n", "\nQ", "x"], ["\n\n"], "42", 3),  # spans tokens
        (["42 Qu", "esti", "on:", "x"], ["Question:"], "42 ", 3),
        (["42", "\n", "Q"], ["\n\n", "\nQ"], "42", 3),
        (["a", "bc", "d"], ["bcd", "c"], "ab", 2),  # the one that is complete first
        (["a", "xy"], ["y", "x"], "a", 2),  # of two, the one that begins first,
    ):
        with subtests.test(pieces=pieces, stop=stop):
            written = row(pieces, stop)
            assert (written.text, len(written.tokens), written.finish) == (text, tokens, "stop")
            # Comparing tokens, as a loop over ids of the stop string does, misses all of these.
            assert not any(piece in stop for piece in pieces)


def test_stop_strings_that_never_complete_stay_and_the_earliest_wins():
    assert row(["42", "\n", "x"], ["\n\n"]) == Generation("42\nx", (0, 1, 2), "length")
    assert first_stop("a b c", ["c", "b"]) == (2, "b")


def test_bad_generation_settings_and_nan_logits_are_errors():
    require_refusals(
        ("Hello", {"stop": [""]}, "a stop string is empty"),
        ("Hello", {"stop": ["a<|im_end|>"]}, r"special token '<\|im_end\|>'.*end_tokens"),
        ("Hello", {"max_new_tokens": 2046}, "do not fit into the model's 2048"),
        ("", {}, "prompt 0 has no token"),
        of=lambda prompts, options: generate_greedy(MODEL, TOKENIZER, prompts, **options),
    )
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="logits are NaN"):
        generate_greedy(model, TOKENIZER, "Hello", max_new_tokens=1)


EXAMPLES = [{"q": "1 + 1?", "answer": "2"}, {"q": "2 + 2?", "answer": "4"}]


def test_a_few_shot_prompt_solves_its_examples_and_leaves_the_question_open():
    template = PromptTemplate("Q: {q}\nA:", description="Add.\n\n")
    prompt = template.render({"q": "3 + 3?", "answer": "6"}, EXAMPLES)
    assert prompt.text == "Add.\n\nQ: 1 + 1?\nA: 2\n\nQ: 2 + 2?\nA: 4\n\nQ: 3 + 3?\nA:"
    assert prompt.delimiter == " "
    template = PromptTemplate("{q}", description="Add.")
    prompt = template.render({"q": "3 + 3?"}, EXAMPLES[:1], chat=TOKENIZER)
    roles = [part.split("\n")[0] for part in prompt.text.split("<|im_start|>")[1:]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert prompt.text.endswith("3 + 3?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.delimiter == ""
    assert PromptTemplate("{q}").render({"q": "{x} or {{y}}"}).text == "{x} or {{y}}"


def test_a_bad_example_is_an_error():  # for templates, see test_task_file
    require_refusals(
        (lambda: PromptTemplate("{q}").render({"q": "a"}, [{"q": "b"}]), "no field 'answer'"),
        (lambda: choose_examples(EXAMPLES, 3), "has 2 examples, but 3 are wanted"),
    )


def test_examples_depend_on_the_seed_alone():
    pool = [{"answer": str(number)} for number in range(50)]
    assert choose_examples(pool, 5, seed=1) == choose_examples(pool, 5, seed=1)
    assert choose_examples(pool, 5, seed=1) != choose_examples(pool, 5, seed=2)


def test_each_step_of_a_score_is_kept_and_the_best_reference_counts():
    question = OpenQuestion("How many?", ("12",), "q1")
    texts = ["3 times 4 is 12.", "A dozen."]
    result = score_answers(
        [question, question],
        texts,
        rules=["last number"],
        normalization="number",
        metrics={"length": lambda answer, reference: len(answer)},
    )
    first, second = result.answers
    assert (first.exact, first.quasi, first.f1, first.metrics) == (True, True, 1.0, {"length": 2})
    assert (second.exact, second.extraction, second.f1) == (False, None, 0.0)
    assert result.accuracy == 0.5
    question = OpenQuestion("How many?", ("12", "twelve"))
    same = {"same": lambda answer, reference: float(answer == reference)}
    [answer] = score_answers([question], ["12"], metrics=same).answers
    assert answer.metrics == {"same": 1.0}
    result = score_answers([OpenQuestion("?", ("A",))], ["A"])
    [answer] = result.answers
    assert (answer.exact, answer.quasi, answer.f1) == (True, None, None)


def test_bad_questions_are_errors():
    asked = [OpenQuestion("?", ("a",))]
    require_refusals(
        (lambda: score_answers([], []), "at least one question"),
        (lambda: score_answers(asked, []), "1 questions and 0 texts"),
        (lambda: score_answers([OpenQuestion("?", (), "q9")], ["a"]), r"0 \('q9'\): references is"),
        (lambda: answer_questions(None, TOKENIZER, asked, rules=["no"]), "a rule must be one of"),
    )
