"""The objects of responses: tokens that are no text, offsets, numbers that JSON cannot hold."""

import json
import math

from course_pkg.deployment.engine_thread import Call
from course_pkg.deployment.responses import ChatAnswer, TextAnswer, TokenTexts
from course_pkg.deployment.schemas import ChatRequest, CompletionRequest
from course_pkg.lm.load import load
from course_pkg.serving.request import Chunk, Completion, Request
from course_pkg.serving.sampling import LogProb, SamplingParams
from tests.serving.sentence_piece import sentence_piece_tokenizer
from tests.tables import each_row

TOKENIZER = load("tiny").tokenizer
TEXTS = TokenTexts(TOKENIZER)


def answer(kind, tokens, *, logprobs=1):
    """An answer to a prompt of one token, and the chunks of these new tokens."""
    request = Request(1, [65], SamplingParams(logprobs=logprobs))
    completion = Completion(request, 0, TOKENIZER)
    request.completions = [completion]
    call = Call([request.prompt], request.params, None)
    call.requests = [request]
    text = kind is TextAnswer
    body = CompletionRequest(model="m", prompt="A") if text else ChatRequest(model="m", messages=[])
    chunks = [
        Chunk(completion, token, "x", LogProb(token, value, top), None)
        for token, value, top in tokens
    ]
    return kind(call, body, TEXTS), chunks


def test_bytes_of_tokens_join_to_the_text_also_those_of_sentencepiece():
    text = "aé中🌊"
    assert b"".join(TEXTS(token)[1] for token in text.encode()).decode() == text
    assert TEXTS(0xF0) == ("bytes:\\xf0", b"\xf0")
    assert TEXTS(TOKENIZER.eos_token_id) == ("<|im_end|>", b"<|im_end|>")
    tokenizer = sentence_piece_tokenizer()
    texts = TokenTexts(tokenizer)
    assert texts(tokenizer.convert_tokens_to_ids("ab")) == ("ab", b"ab")
    assert texts(tokenizer.convert_tokens_to_ids("<0xE4>")) == ("bytes:\\xe4", b"\xe4")


@each_row("streamed", [False, True])
def test_offsets_are_those_of_characters(streamed):
    """é takes bytes 195 and 169; both tokens begin at the character that they are part of."""
    made, chunks = answer(TextAnswer, [(token, -1.0, ()) for token in (97, 195, 169, 98)])
    if streamed:
        events = made.events(chunks, False).split(b"\n\n")[:-1]
        parts = [json.loads(e.removeprefix(b"data: "))["choices"][0]["logprobs"] for e in events]
        offsets = [offset for part in parts for offset in part["text_offset"]]
    else:
        offsets = made.whole(chunks)["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 1, 1, 2]


@each_row("value", [-math.inf, -1e30])
@each_row("kind", [TextAnswer, ChatAnswer])
def test_log_probabilities_that_json_cannot_hold(kind, value):
    tokens = [(97, value, ((97, value),))]
    made, chunks = answer(kind, tokens)
    assert json.dumps(made.whole(chunks), allow_nan=False).count("-9999.0") == 2
    made, chunks = answer(kind, tokens)
    assert b"-9999.0" in made.events(chunks, False)


def test_the_chosen_token_is_first_and_text_of_other_scripts_is_sent_as_it_is():
    made, chunks = answer(TextAnswer, [(98, -3.0, ((97, -0.1),))])
    [choice] = made.whole(chunks)["choices"]
    assert list(choice["logprobs"]["top_logprobs"][0].items()) == [("b", -3.0), ("a", -0.1)]
    made, [chunk] = answer(ChatAnswer, [(97, 0.0, ())], logprobs=None)
    event = made.events([chunk._replace(text="中\n\n")], True)
    assert event.count(b"\n\n") == 1 and "中".encode() in event  # JSON writes a line break as \n
    assert json.loads(event[6:])["usage"] is None
