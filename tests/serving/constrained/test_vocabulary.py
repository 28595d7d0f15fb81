"""The bytes of tokens, for both families of tokenizers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.constrained.guide import regex_guide
from course_pkg.serving.constrained.vocabulary import Vocabulary, vocabulary_of
from tests.tables import each_row

TINY = tiny_tokenizer()
TINY_VOCABULARY = vocabulary_of(TINY)
TEXTS = ["", "a", " two words", "naïve café", "東京 🙂", "tab\tand\nnewline", "▁", "Ġ", "<0x41>"]


def sentence_piece_tokenizer():
    """A tokenizer as Llama 2's: ▁ for spaces, a token for each byte."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "a", "b", "▁a", "é", "▁▁", "ab", "東"]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [("▁", "a"), ("▁", "▁"), ("a", "b")]
    model = BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def written(vocabulary, ids):
    return b"".join(vocabulary.tokens[token] for token in ids)


@given(st.text())
def test_a_texts_tokens_write_its_bytes_in_a_byte_level_vocabulary(text):
    vocabulary = TINY_VOCABULARY
    ids = TINY(text, add_special_tokens=False).input_ids
    if all(vocabulary.tokens[token] is not None for token in ids):  # no "<|im_end|>" in the text
        assert written(vocabulary, ids) == text.encode()


@each_row("text", [text for text in TEXTS if text not in ("", "▁", "<0x41>")])
def test_a_texts_tokens_write_a_space_and_its_bytes_with_sentence_piece(text):
    tokenizer = sentence_piece_tokenizer()
    vocabulary = vocabulary_of(tokenizer)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert written(vocabulary, ids) == b" " + text.encode()
    assert tokenizer.decode(ids) == text  # the decoder drops the first space


def test_byte_fallback_lets_a_constraint_write_what_has_no_token():
    vocabulary = vocabulary_of(sentence_piece_tokenizer())
    guide = regex_guide(" [éü京]", vocabulary)
    names = sentence_piece_tokenizer().convert_ids_to_tokens(guide.allowed(guide.start))
    assert names == ["<0x20>", "▁"]
    after = guide.advance(guide.start, guide.allowed(guide.start)[1])
    names = sentence_piece_tokenizer().convert_ids_to_tokens(guide.allowed(after))
    assert names == ["<0xC3>", "<0xE4>", "é"]


def test_special_tokens_write_nothing_and_added_ones_their_text():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["é Ġ"])
    vocabulary = vocabulary_of(tokenizer)
    assert vocabulary.tokens[256:] == [None, None, None, "é Ġ".encode()]
    assert vocabulary.eos == {258}
    assert vocabulary_of(tokenizer, eos=[256, 258]).eos == {256, 258}
    guide = regex_guide(r".*", vocabulary)
    assert guide.allowed(guide.start)[-2:] == [258, 259]


def test_tokenizers_of_another_family_vocabularies_without_an_end_and_texts_are_refused():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordPiece({"[UNK]": 0, "a": 1})), eos_token="[UNK]"
    )
    with pytest.raises(ValueError, match=r"\(WordPiece\) is neither byte-level nor"):
        vocabulary_of(tokenizer)
    for eos in ([], [3], [-1]):
        with pytest.raises(ValueError, match="give at least one id from 0 to 1"):
            Vocabulary([b"a", b"b"], eos=eos)
    with pytest.raises(TypeError, match="token 1 must be bytes or None, got 'b'"):
        Vocabulary([b"a", "b"], eos=[0])


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=20), st.binary(max_size=5))
def test_the_trie_finds_prefixes_and_the_longest_token(tokens, data):
    vocabulary = Vocabulary([*tokens, b""], eos=[len(tokens)])
    trie = vocabulary.trie
    assert (trie.find(data) is not None) == (not data or any(t.startswith(data) for t in tokens))
    fitting = [token for token in tokens if data.startswith(token)]
    longest = trie.longest(data)
    assert (longest is None) == (not fitting)
    if fitting:
        assert tokens[longest] == max(fitting, key=len)
    assert len(trie.tokens) == len(tokens) and len(trie.first_child) == len(trie.byte) + 1


@pytest.mark.model
def test_smollm2s_tokens_write_the_bytes_of_texts(smollm2):
    tokenizer = smollm2.tokenizer
    vocabulary = vocabulary_of(tokenizer, eos=smollm2.model.generation_config.eos_token_id)
    assert len(vocabulary) == 49152 and vocabulary.eos == {0, 2}
    assert sum(token is None for token in vocabulary.tokens) == 17  # the special ones
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert written(vocabulary, ids) == text.encode()
        assert vocabulary.tokenize(text.encode()) == ids
    written_alone = {token for token in vocabulary.tokens if token and len(token) == 1}
    assert len(written_alone) == 256 - 21  # bytes without a token: `lm.smollm2` says more
