"""A tokenizer of Llama 2's kind."""

from transformers import LlamaTokenizer

SPACE = "\u2581"  # SentencePiece's


def sentence_piece_tokenizer(byte_tokens=256):
    """Words with their space, and tokens for single bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(byte_tokens))]
    words += [SPACE, *"abé中東", f"{SPACE}a", f"{SPACE}ab", SPACE * 2, "ab"]
    merges = [(SPACE, "a"), (f"{SPACE}a", "b"), (SPACE, SPACE), ("a", "b")]
    return LlamaTokenizer(vocab={word: id for id, word in enumerate(words)}, merges=merges)
