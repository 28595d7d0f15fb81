"""`course chat`: turns, commands, Ctrl-C, a full context, pipes, adapters and servers."""

import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.injection import merge_adapters, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import adapt, load, save
from course_pkg.adapters.prompts import PromptTuningConfig
from course_pkg.cli import app
from course_pkg.common.http_client import HttpClient, RefusedError
from course_pkg.deployment.chat_model import ChatError, ChatReply, LocalChat, ServerChat
from course_pkg.deployment.chat_session import ChatSession, interrupts
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import chat_text, prompt_tokens
from course_pkg.finetuning.own_data.data_file import read_data
from course_pkg.lm.load import LoadedModel
from course_pkg.lm.load import load as load_model
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row
from tests.waiting import wait_until

from .live import serving


def talkative():
    """The tiny model with larger weights, so that its text depends on all it reads, in ASCII."""
    model, tokenizer = load_model("tiny")
    generator = torch.Generator().manual_seed(0)
    head = torch.zeros_like(model.lm_head.weight)
    head[33:127] = torch.randn(94, head.shape[1], generator=generator)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(head)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return LoadedModel(model, tokenizer)


MODEL = talkative()


def tiny_engine(blocks=512):
    return Engine(*MODEL, blocks=blocks, block_size=8)


GREEDY = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 6}


class Session(ChatSession):
    """A session of the tiny model that keeps what it writes. on_text: called for each part."""

    def __init__(self, model=None, seed=None, on_text=None, **options):
        self.parts = []
        self.notes = []

        def write(text):
            self.parts.append(text)
            if on_text is not None:
                on_text(self)

        model = model or LocalChat(tiny_engine(**options), "tiny", GREEDY)
        super().__init__(model, write, self.notes.append, seed)

    @property
    def text(self):
        return "".join(self.parts)


def written(turns, model=MODEL.model, most=6):
    """What greedy decoding writes, as `course eval` asks for it."""
    prompt = chat_text(turns, MODEL.tokenizer, generation_prompt=True)
    return generate_greedy(model, MODEL.tokenizer, [prompt], max_new_tokens=most)[0].text


def test_each_turn_reads_the_whole_conversation_through_the_chat_template():
    session = Session()
    session.run(["Hi\n", "\n", "/system Be brief.\n", "Bye\n", "/quit\n", "never"])
    first = written([Message("user", "Hi")])
    turns = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", first)]
    second = written([*turns, Message("user", "Bye")])
    assert [message.content for message in session.messages] == ["Hi", first, "Bye", second]
    assert session.text == "".join(t if t.endswith("\n") else t + "\n" for t in (first, second))
    assert session.notes == ["(the system turn is 'Be brief.')"]


def test_reset_forgets_the_turns_and_an_unknown_command_is_no_turn():
    session = Session()
    session.run(["Hi", "/reset", "/what now", "/system", "Bye"])
    expected = ["Bye", written([Message("user", "Bye")])]
    assert [message.content for message in session.messages] == expected
    assert "there is no /what; commands: /reset" in session.notes[1]
    assert session.notes[2] == "(there is no system turn now)"


@each_row(("word", "slash"), [("quit", "/quit"), ("Exit", "/exit"), ("Bye", "/bye")])
def test_the_usual_words_end_the_chat_and_without_a_slash_ask_the_model(word, slash):
    session = Session()
    session.run([word, slash, "never"])
    assert [message.content for message in session.messages][::2] == [word]
    told = any("/quit or Ctrl-D ends the chat" in note for note in session.notes)
    assert told is (word != "Bye")


def test_a_saved_chat_is_a_line_that_finetune_reads_and_no_file_is_overwritten(tmp_path):
    path = tmp_path / "chat.jsonl"
    session = Session()
    session.run([f"/save {path}", "/system Brief, s'il te plaît.", "Hi", f"/save {path}"])
    saved = path.read_bytes()
    session.run(["Bye", f"/save {path}", "/save", f"/save {tmp_path / 'no' / 'a'}"])
    [conversation] = read_data(path).examples
    assert [m.role for m in conversation.messages] == ["system", "user", "assistant"]
    assert conversation.messages[2] == session.messages[1]
    assert path.read_bytes() == saved
    notes = [note for note in session.notes if note.startswith("nothing is saved")]
    parts = ("no turn yet", "exists; give another name", "/save FILE", "No such file")
    for part, note in zip(parts, notes, strict=True):
        assert part in note


def test_ctrl_c_stops_the_answer_keeps_its_beginning_and_the_chat_goes_on():
    def interrupt(session):
        if len(session.parts) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    session = Session(
        LocalChat(tiny_engine(), "tiny", GREEDY | {"max_tokens": 200}), on_text=interrupt
    )
    before = signal.getsignal(signal.SIGINT)
    session.run(["Hi", "/reset"])
    assert 0 < len(session.text) < 20 and "(stopped)" in session.notes
    assert not session.model.engine.requests, "the request is aborted"
    assert signal.getsignal(signal.SIGINT) is before
    session.model.params = SamplingParams(**GREEDY)
    session.ask("Bye")
    assert session.messages[-1].content == written([Message("user", "Bye")])


def test_ctrl_c_closes_the_connection_to_a_server_which_then_stops_its_answer():
    with serving(tiny_engine()) as live:
        endless = GREEDY | {"max_tokens": 2000, "ignore_eos": True}
        session = Session(ServerChat(HttpClient(live.url), endless))
        begun = threading.Thread(target=interrupt_when, args=(lambda: live.engine.requests,))
        begun.start()
        session.ask("Hi")
        begun.join()
        assert (session.messages, session.text) == ([], "")
        assert session.notes == ["(stopped; your turn is not kept)"]
        wait_until(lambda: live.is_empty)
        session.model = ServerChat(HttpClient(live.url), GREEDY)
        session.ask("Bye")
        assert session.messages[-1].content == written([Message("user", "Bye")])


def test_ctrl_c_ends_a_chat_in_a_pipe(monkeypatch):
    def interrupt(session):
        if len(session.parts) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    session = Session(on_text=interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run(["Hi", "never"], commands=False)
    assert "(stopped)" in session.notes and len(session.messages) == 2
    assert not session.model.engine.requests, "the request is aborted"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(ChatSession, "run", interrupted)
    done = chat("--model", "tiny")
    assert (done.exit_code, done.output) == (130, "")


def interrupt_when(holds):
    """Press Ctrl-C in the main thread as soon as a condition holds."""
    wait_until(holds)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_second_ctrl_c_ends_what_does_not_react_to_the_first():
    with pytest.raises(KeyboardInterrupt), interrupts() as seen:
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)


def test_the_oldest_turns_are_dropped_when_the_context_is_full_and_that_is_said_once():
    session = Session(blocks=20)  # 161 tokens
    session.run(["/system Be brief."] + ["Hi there, how are you?"] * 3)
    limit = session.model.limit
    kept = [Message("system", "Be brief."), *session.messages[2:5]]
    assert prompt_tokens([*kept[:1], *session.messages[:5]], MODEL.tokenizer) > limit
    said = [note for note in session.notes if "no longer sees" in note]
    size = prompt_tokens(kept, MODEL.tokenizer)
    assert said == [
        "(the conversation is too long: the model no longer sees its oldest 2 messages, "
        f"{size} tokens are left)"
    ]
    assert session.messages[5].content == written(kept), "the rest of the history is seen"
    assert len(session.messages) == 6, "nothing is forgotten in the session itself"


def test_a_question_that_does_not_fit_gets_no_answer_and_a_seed_repeats_the_answers():
    session = Session(blocks=20)
    session.run(["x" * 200, "Hi"])
    assert "161, less --max-tokens, 6)" in session.notes[0]
    assert "the limit is 155" in session.notes[0] and "your turn is not kept" in session.notes[0]
    assert (session.unanswered, len(session.messages)) == (1, 2)

    def answers(seed):
        model = LocalChat(tiny_engine(), "tiny", GREEDY | {"temperature": 1.0})
        session = Session(model, seed)
        session.run(["Hi", "/reset", "Hi"])
        return session.text

    assert answers(3) == answers(3) != answers(4)
    first = answers(3)[: len(answers(3)) // 2]
    second = answers(3)[len(answers(3)) // 2 :]
    assert first != second


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Folders of a LoRA and a DoRA adapter that change the model, of a trained prompt, of it."""
    folders = {"model": tmp_path_factory.mktemp("model")}
    for part in MODEL:
        part.save_pretrained(folders["model"])
    for config in (LoRAConfig(rank=4, alpha=64), DoRAConfig(rank=4, alpha=64)):
        model = adapt(load_model(folders["model"]).model, config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.fill_(0.05)
        folders[type(config).__name__] = tmp_path_factory.mktemp("adapter")
        save(model, folders[type(config).__name__])
    folders["prompt"] = tmp_path_factory.mktemp("prompt")
    save(adapt(load_model(folders["model"]).model, PromptTuningConfig(2)), folders["prompt"])
    return folders


def chat(*arguments, lines=("Hi",)):
    command = ["chat", "--temperature", "0", "--max-tokens", "6", *map(str, arguments)]
    return CliRunner().invoke(app, command, input="\n".join(lines))


@each_row("kind", ["LoRAConfig", "DoRAConfig"])
def test_an_adapter_answers_whether_it_runs_beside_the_model_or_merged(adapters, kind):
    done = chat("--adapter", adapters[kind])  # which names its model
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    model = load(load_model(adapters["model"]).model, adapters[kind])
    merge_adapters(model)
    remove_adapters(model)
    expected = written([Message("user", "Hi")], model)
    assert done.stdout.rstrip("\n") == expected.rstrip("\n")
    assert expected != written([Message("user", "Hi")])


def test_a_pipe_gets_the_answers_alone_and_a_turn_without_one_is_exit_code_1(adapters):
    done = chat("--model", adapters["model"], "--system", "Be brief.", lines=["Hi", "y" * 3000])
    turns = [Message("system", "Be brief."), Message("user", "Hi")]
    assert done.stdout.rstrip("\n") == written(turns).rstrip("\n")
    assert "no answer: " in done.stderr and done.exit_code == 1


def test_the_lines_of_a_pipe_are_questions_whatever_they_look_like(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(ChatSession, "ask", lambda self, text: asked.append(text))
    lines = ["Hi", f"/save {tmp_path / 'x'}", "/system Obey.", "/paste", "/quit", "quit", "Bye"]
    done = chat("--model", "tiny", lines=lines)
    assert (done.exit_code, done.stderr, asked) == (0, "", lines)
    assert list(tmp_path.iterdir()) == []


def test_pasted_lines_are_one_turn_also_if_they_look_like_commands():
    session = Session()
    session.run(["/paste\n", "def f():\n", "\n", "/reset  \n", "/end\n", "/paste", "/end", "Hi"])
    questions = [message.content for message in session.messages][::2]
    assert questions == ["def f():\n\n/reset", "Hi"]
    session.run(["/paste", "the end of input ends it too"])
    assert session.messages[-2].content == "the end of input ends it too"


@each_row(
    ("arguments", "says"),
    [
        (["--model", "tiny", "--top-p", "2"], "top_p is 2.0"),
        (["--model", "tiny", "--max-tokens", "5000"], "takes 2048 tokens"),
        (["--model", "tiny", "--adapter", "/nowhere"], "--adapter /nowhere"),
        (["--model", "tinny"], 'did you mean "tiny"?'),
        (["--model", "tiny", "--base-url", "http://h/v1"], "--served-model-name"),
        (["--model", "tiny", "--served-model-name", "x"], "model-name is for --base-url"),
        (["--model", "tiny", "--timeout", "9"], "--timeout is for --base-url"),
        (["--base-url", "h:8000"], "the address must be like"),
    ],
)
def test_what_is_not_possible_is_one_line_and_exit_code_2(arguments, says):
    done = chat(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr and done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_trained_prompt_cannot_be_merged_and_a_model_without_a_template_cannot_chat(adapters):
    done = chat("--adapter", adapters["prompt"])
    assert done.exit_code == 2 and "can't be merged" in done.stderr
    engine = Engine(*load_model("tiny"), blocks=8)
    engine.tokenizer.chat_template = None
    with pytest.raises(ChatError, match="no chat template"):
        LocalChat(engine, "tiny", GREEDY)


def test_a_server_gives_the_same_answers_and_drops_turns_when_it_says_that_they_do_not_fit():
    with serving(tiny_engine(blocks=20)) as live:
        server = ServerChat(HttpClient(live.url, retries=0), GREEDY)
        assert server.name == f"tiny at {live.url}"
        questions = ["Hi there, how are you?"] * 3
        here = Session(blocks=20)
        there = Session(server)
        for session in (here, there):
            session.run(["/system Be brief.", *questions, "z" * 200])
        assert there.messages == here.messages
        assert [note for note in there.notes if "oldest 2 messages)" in note]
        assert "context_length_exceeded" in there.notes[-1] or "400" in there.notes[-1]
        assert there.unanswered == 1
        done = chat("--base-url", live.url)
        assert done.stdout.rstrip("\n") == written([Message("user", "Hi")]).rstrip("\n")
    server.client.pause = 0
    there.ask("Hi")
    assert "does not answer" in there.notes[-1] and there.unanswered == 2


class Refusing:
    """A client of a server that refuses as `error` says if there are more than two messages."""

    address = "http://h/v1"

    def __init__(self, error):
        self.error = error

    def post(self, path, body):
        if "max_tokens" in body:
            raise RefusedError("", 400, param="max_tokens", code="unsupported_parameter")
        if len(body["messages"]) > 2:
            raise self.error
        return {"choices": [{"message": {"content": "Yes."}}]}


@each_row(
    ("fields", "may_be_too_long"),
    [
        ({"status": 400, "code": "context_length_exceeded"}, True),
        ({"status": 400, "kind": "exceed_context_size_error"}, True),
        ({"status": 413}, True),  # without a code, fewer turns are tried
        ({"status": 400, "code": "invalid_value"}, False),
        ({"status": 500}, False),
    ],
)
def test_turns_are_dropped_by_the_code_of_a_refusal_not_by_its_words(fields, may_be_too_long):
    session = Session(ServerChat(Refusing(RefusedError("context length", **fields)), GREEDY, "m"))
    session.run(["One?", "Two?"])
    assert len(session.messages) == (4 if may_be_too_long else 2)
    told = [note for note in session.notes if "no longer sees its oldest 2" in note]
    assert bool(told) is may_be_too_long
    assert (
        session.notes.count("(the server has max_completion_tokens in place of max_tokens)") == 1
    ), "once"


@each_row(
    ("choice", "says"),
    [
        ({"message": {"content": None, "refusal": "Never."}}, "the model refuses: Never.; your"),
        ({"message": {"content": None}, "finish_reason": "length"}, "it reached --max-tokens"),
        ({"message": {"content": ""}, "finish_reason": "stop"}, "(the answer is empty; your turn"),
        ({"message": {"content": 3}}, "http://h/v1 sent no answer"),
        ({}, "http://h/v1 sent no answer"),
    ],
)
def test_a_server_s_answer_without_a_text_says_why(choice, says):
    client = SimpleNamespace(address="http://h/v1", post=lambda path, body: {"choices": [choice]})
    session = Session(ServerChat(client, GREEDY, "m"))
    session.run(["Hi"])
    assert (session.messages, session.unanswered) == ([], 1)
    assert says in session.notes[0]


def test_a_server_writes_an_adapters_chats_with_its_own_template(tmp_path):
    adapter = adapt(load_model("tiny").model, LoRAConfig(rank=2))
    save(adapter, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    engine = Engine(*load_model("tiny"), blocks=64, adapters={"mine": tmp_path})
    with serving(engine) as live:
        sizes = {}
        for name in ("tiny", "mine"):
            asked = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}
            status, answer = live.post("/v1/chat/completions", asked | {"max_tokens": 1})
            assert status == 200, answer
            sizes[name] = answer["usage"]["prompt_tokens"]
    assert sizes == {"mine": 2, "tiny": prompt_tokens([Message("user", "Hi")], MODEL.tokenizer)}


def test_an_answer_of_half_characters_or_nothing_keeps_the_history_valid():
    reply = ChatReply(0, 1, iter(["  "]))
    mute = SimpleNamespace(name="mute", in_process=True, reply=lambda messages, seed: reply)
    session = Session(mute)
    session.run(["Hi", "\ud800"])
    assert (session.messages, session.unanswered) == ([], 2)
    assert "empty" in session.notes[0] and "surrogate" in session.notes[1]
    assert json.dumps(session.messages) == "[]"
