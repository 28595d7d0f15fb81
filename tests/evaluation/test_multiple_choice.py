import math

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from course_pkg.evaluation.multiple_choice import (
    ChoiceQuestion,
    ScoredOption,
    ScoredQuestion,
    score_questions,
)
from course_pkg.evaluation.option_boundary import encode, encode_options
from course_pkg.lm.tiny import tiny_tokenizer
from tests.refusals import require_refusals


def merging_tokenizer(*words: str, bos: str | None = "<s>"):
    """A tokenizer of single characters that merges each of these words into one token."""
    characters = sorted({*" \n:abcdefghijklmnopqrstuvwxyzA", *"".join(words)})
    pieces = [word[:end] for word in words for end in range(2, len(word) + 1)]
    vocabulary = {piece: number for number, piece in enumerate([*characters, *pieces])}
    merges = [(piece[:-1], piece[-1]) for piece in pieces]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens([bos or "<none>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos)


def texts(tokenizer, option):
    return [tokenizer.decode([token]) for token in option.ids[option.start :]]


def test_context_and_option_are_encoded_together_and_divided_at_the_contexts_tokens():
    tokenizer = merging_tokenizer("ab")
    [option] = encode_options(tokenizer, "cd:", ["ab"])
    assert option.ids == tuple(tokenizer("cd: ab").input_ids)
    assert texts(tokenizer, option) == [" ", "ab"] and option.merged is None


def test_a_token_that_joins_context_and_option_is_scored_for_all_options():
    tokenizer = merging_tokenizer("answer")
    context = "the answe"  # one token "answe"
    options = encode_options(tokenizer, context, ["rs", "d"], delimiter="")
    assert [texts(tokenizer, option) for option in options] == [["answer", "s"], ["answe", "d"]]
    assert [option.merged for option in options] == ["answer", None]
    tokenizer = merging_tokenizer("Answer")
    [option] = encode_options(tokenizer, "Ans", ["wer"], delimiter="")
    assert option.ids == (tokenizer.bos_token_id, *tokenizer("Answer").input_ids)
    assert (option.start, option.merged) == (1, "Answer")


def test_white_space_at_the_end_of_a_context_moves_to_the_option(subtests):
    for context, delimiter, scored in (("b: ", "", " a"), ("b:\n", "", "\na"), ("b:", " ", " a")):
        with subtests.test(context=context, delimiter=delimiter):
            tokenizer = merging_tokenizer(" a")
            [option] = encode_options(tokenizer, context, ["a"], delimiter=delimiter)
            assert "".join(texts(tokenizer, option)) == scored
            assert list(option.ids[: option.start]) == tokenizer("b:").input_ids


def test_without_a_context_the_option_follows_the_bos(subtests):
    for context in ("", "\n"):
        with subtests.test(context=context):
            tokenizer = merging_tokenizer("ab")
            [option] = encode_options(tokenizer, context, ["ab"], delimiter="")
            assert option.ids[0] == tokenizer.bos_token_id and option.start == 1
            assert "".join(texts(tokenizer, option)) == context + "ab"
            with pytest.raises(ValueError, match="neither a BOS nor an EOS"):
                encode_options(merging_tokenizer("ab", bos=None), "", ["ab"])


def test_a_bos_is_added_once():
    tokenizer = merging_tokenizer("ab")
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    assert encode(tokenizer, "ab") == encode(tokenizer, "<s>ab")
    assert encode(tokenizer, "ab").count(bos) == 1
    tokenizer = tiny_tokenizer()
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    ids = encode(tokenizer, chat)
    assert ids[0] == tokenizer.bos_token_id and ids[1] != tokenizer.bos_token_id
    [option] = encode_options(tokenizer, chat, ["yes"], delimiter="")
    assert tokenizer.decode(option.ids[option.start :]) == "\nyes"


def test_options_that_cannot_be_scored_are_errors(subtests):
    for arguments, message in (
        ({"options": ["a", ""]}, "option 1 is '': an option without text"),
        ({"options": [" "]}, "an option without text"),
        ({"options": []}, "options is empty"),
        ({"options": "ab"}, r"put the options into \[ \]"),
        ({"context": "b: "}, "two spaces meet"),
        ({"options": [" a"]}, "two spaces meet"),
        ({"context": "b: ", "options": [" a"], "delimiter": ""}, "two spaces meet"),
        ({"options": ["é"], "delimiter": ""}, "no token for option 0, 'é'"),
    ):
        with subtests.test(arguments=arguments, message=message):
            values = {"context": "b:", "options": ["a"], **arguments}
            with pytest.raises((ValueError, TypeError), match=message):
                encode_options(
                    merging_tokenizer("ab"), values.pop("context"), values.pop("options"), **values
                )


def option(text, *log_probs, unconditional=None):
    return ScoredOption(text, ("?",) * len(log_probs), log_probs, False, None, unconditional)


def test_each_normalization_can_prefer_another_option():
    """By hand: sums −5, −6, −9, −8; per token −5, −3, −4.5, −2.67; and so on."""
    options = (
        option("abcd", -5.0, unconditional=-4.0),  # −1
        option("abc", -3.0, -3.0, unconditional=-4.5),  # −1.5
        option("abcdefghijkl", -4.5, -4.5, unconditional=-10.0),  # +1
        option("日本語で", -3.0, -3.0, -2.0, unconditional=-7.0),  # 4 characters, 12 bytes; −1
    )
    scored = ScoredQuestion(ChoiceQuestion("c", tuple(o.text for o in options), answer=0), options)
    chosen = {n: scored.choice(n) for n in ("sum", "token", "character", "byte", "pmi")}
    assert chosen == {"sum": 0, "token": 3, "character": 2, "byte": 3, "pmi": 2}
    assert scored.correct("sum") and not scored.correct("pmi")
    assert options[2].score("character") == -9 / 12
    assert options[3].score("byte") == -8 / 12


def test_a_choice_flatters_a_model_that_would_write_something_else():
    options = (option("a", math.log(0.04)), option("b", math.log(0.01)))
    scored = ScoredQuestion(ChoiceQuestion("c", ("a", "b"), answer=0), options)
    assert scored.correct() and scored.probabilities() == pytest.approx((0.8, 0.2))
    assert scored.answer_probability == pytest.approx(0.04)
    assert scored.listed_probability == pytest.approx(0.05)
    assert not scored.writes_an_option


def test_of_equal_scores_the_first_wins_and_a_choice_needs_what_it_is_made_from():
    options = (option("a", -1.0), option("b", -1.0))
    assert ScoredQuestion(ChoiceQuestion("c", ("a", "b")), options).choice() == 0
    scored = ScoredQuestion(ChoiceQuestion("c", ("a",), id="q7"), (option("a", -1.0),))
    with pytest.raises(ValueError, match="give `premise`"):
        scored.choice("pmi")
    with pytest.raises(ValueError, match="'q7' has no answer"):
        scored.correct()


def test_questions_keep_their_order_and_options_their_premise(tiny):
    questions = [
        ChoiceQuestion("Which is longer?", ("a mile", "a foot", "an inch"), answer=0),
        ChoiceQuestion("1 + 1 =", ("2", "3"), answer=0),
    ]
    together = score_questions(*tiny, questions, premise="Answer:")
    alone = [score_questions(*tiny, [question], premise="Answer:") for question in questions]
    for question, result, single in zip(questions, together.questions, alone, strict=True):
        assert result.question == question
        assert tuple(o.text for o in result.options) == question.options
        for scored, expected in zip(result.options, single.questions[0].options, strict=True):
            assert scored.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
            assert scored.unconditional == pytest.approx(expected.unconditional, abs=1e-5)
    premise = score_questions(*tiny, [ChoiceQuestion("Answer:", questions[0].options)])
    expected = [o.log_prob for o in premise.questions[0].options]
    scored = [o.unconditional for o in together.questions[0].options]
    assert scored == pytest.approx(expected, abs=1e-5)
    assert together.accuracy() == sum(together.correct()) / 2
    assert together.single_answer_accuracy() == 0


def test_an_error_names_the_question(tiny):
    require_refusals(
        (ChoiceQuestion("c", ("a", " "), id="x1"), r"question 1 \('x1'\): option 1 is ' '"),
        (ChoiceQuestion("c", ("a",), answer=1), "the answer is 1, but there are 1 options"),
        of=lambda question: score_questions(*tiny, [ChoiceQuestion("c", ("a",)), question]),
    )
