"""What llama.cpp does with a GGUF file: a program for an environment that has xllamacpp.

It reads a request, JSON, from stdin and writes the answer to stdout; `test_llama_cpp.py` starts it.
A request has the file's path as `model`, and:

    texts     → ids        of each text, special tokens recognized
    chats     → prompts    what the file's chat template makes of each list of messages
    prompts   → tokens     `new` greedy tokens after each list of ids
              → logprobs   of the `top` most probable tokens before each of them: {id: logprob};
                           the server gives none for half a character, so `token` is an id that
                           is taken in place of the most probable one
    rows      → quantized  each list of numbers in Q4_0 and Q8_0, as hexadecimal bytes

Attention is computed in fp32 with keys and values in fp32; by default llama.cpp stores them in
fp16. It uses no module of the course.
"""

import ctypes
import json
import sys
import urllib.request
from typing import Any

TYPES = {"Q4_0": (2, 18), "Q8_0": (8, 34)}  # code in ggml, bytes of a block of 32


def start(model: str) -> Any:
    """llama.cpp's server, on one thread."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_parallel = 1
    params.n_ctx = 512
    params.verbosity = 0
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def ask(server: Any, path: str, body: dict) -> dict:
    """The server's answer."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.listening_address + path, data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def greedy(server: Any, prompt: list[int], new: int, top: int, token: int | None) -> dict:
    """The most probable tokens, one after the other, whatever they are."""
    body = {"prompt": prompt, "n_predict": new, "temperature": 0, "top_k": 1, "n_probs": top}
    body |= {"return_tokens": True, "ignore_eos": True, "cache_prompt": False}
    if token is not None:
        body["logit_bias"] = [[token, 1000.0]]  # not in the log-probabilities
    answer = ask(server, "/completion", body)
    steps = [
        {best["id"]: best["logprob"] for best in step["top_logprobs"]}
        for step in answer.get("completion_probabilities", ())
    ]
    return {"tokens": answer["tokens"], "logprobs": steps}


def quantized(row: list[float]) -> dict[str, str]:
    """A row as llama.cpp's own code quantizes it."""
    import xllamacpp

    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    long = ctypes.c_int64
    pointer = ctypes.c_void_p
    quantize.argtypes = [ctypes.c_int, pointer, pointer, long, long, long, pointer]
    numbers = (ctypes.c_float * len(row))(*row)
    codes = {}
    for name, (code, nbytes) in TYPES.items():
        out = ctypes.create_string_buffer(len(row) // 32 * nbytes)
        written = quantize(code, numbers, out, 0, 1, len(row), None)
        assert written == len(out)
        codes[name] = out.raw.hex()
    return codes


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    answer = {"quantized": [quantized(row) for row in request.get("rows", ())]}
    if "model" in request:
        server = start(request["model"])
        text = {"add_special": True, "parse_special": True}
        answer["ids"] = [
            ask(server, "/tokenize", {"content": content} | text)["tokens"]
            for content in request.get("texts", ())
        ]
        answer["prompts"] = [
            ask(server, "/apply-template", {"messages": chat})["prompt"]
            for chat in request.get("chats", ())
        ]
        new = request.get("new", 1)
        top = request.get("top", 0)
        answer["generated"] = [
            greedy(server, prompt, new, top, request.get("token"))
            for prompt in request.get("prompts", ())
        ]
        del server
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
