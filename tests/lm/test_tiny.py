"""The tiny model is seeded and does not change torch's generator; its tokenizer loses no byte."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from course_pkg.lm.load import load
from course_pkg.lm.tiny import byte_symbols, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@given(st.text())
@example("<|im_end|>x<|im_start|>")
def test_decoding_restores_any_string(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text


@given(st.text(alphabet=st.characters(exclude_characters="<|>", exclude_categories=["Cs"])))
def test_ids_are_the_bytes_of_the_text(text):
    assert TOKENIZER(text).input_ids == list(text.encode())


def test_special_tokens_follow_the_bytes_whose_symbols_are_those_of_the_library():
    assert len(TOKENIZER) == 259
    ids = TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id
    assert ids == (256, 257, 258)
    assert TOKENIZER("<|im_end|>").input_ids == [258]
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_symbols()) == set(ByteLevel.alphabet())


def test_weights_follow_from_the_seed_alone_and_torchs_global_generator_does_not_change():
    first = tiny_model(3)
    second = tiny_model(3)
    other = tiny_model(4)
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    load("tiny", seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_it_generates_and_can_be_saved_and_loaded_by_folder(tiny, tmp_path):
    model, tokenizer = tiny
    assert not model.training
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, tokenizer_again = load(str(tmp_path))
    inputs = tokenizer("abc", return_tensors="pt")
    assert torch.equal(model(**inputs).logits, again(**inputs).logits)
    assert tokenizer_again("中文").input_ids == tokenizer("中文").input_ids
    out = again.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert out.shape[0] == 1 and out.shape[1] <= 8


def test_a_chat_prompt_is_a_prefix_of_the_whole_conversation():
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    whole = TOKENIZER.apply_chat_template(turns, tokenize=False)
    prompt = TOKENIZER.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert whole == prompt + "Yo<|im_end|>\n"
