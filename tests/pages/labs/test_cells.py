"""Cells as the browser runs them: what they print, show and raise."""

from course_pkg.pages.labs import shown
from course_pkg.pages.labs.cells import CUT, MOST_TEXT, Cells, display, mime_bundle


def run(*codes: str) -> list[dict]:
    outputs: list[dict] = []
    cells = Cells()
    for number, code in enumerate(codes, start=1):
        cells.run(code, f"cell {number}", outputs.append)
    return outputs


def test_names_are_shared_and_the_last_value_is_shown():
    assert run("x = 2", "x += 1\nx") == [{"data": {"text/plain": "3"}}]


def test_nothing_is_shown():
    codes = ("x = 1", "None", "3;", "", "# nothing", "3 ;  ")
    assert [code for code in codes if run(code)] == []


def test_streams_keep_their_order():
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"
    assert [(output["stream"], output["text"]) for output in run(code)] == [
        ("stdout", "a\n"),
        ("stderr", "b\n"),
        ("stdout", "c\n"),
    ]


def test_a_line_is_handed_over_while_the_cell_runs():
    outputs: list[dict] = []
    cells = Cells()
    cells.names["seen"] = lambda: [output["text"] for output in outputs]
    code = 'print("a")\nfirst = seen()\nprint("b", end="")\nopen_line = seen()\n'
    code += 'print("", end="", flush=True)\nflushed = seen()'
    assert cells.run(code, "cell 1", outputs.append)
    assert cells.names["first"] == cells.names["open_line"] == ["a\n"]
    assert cells.names["flushed"] == ["a\n", "b"]


def test_many_lines_are_handed_over_together():
    outputs: list[dict] = []
    assert Cells().run("for n in range(20_000): print(n)", "cell 1", outputs.append)
    assert "".join(output["text"] for output in outputs) == "".join(f"{n}\n" for n in range(20_000))
    assert len(outputs) < 200


def test_what_is_displayed_comes_between_what_is_printed():
    code = "from course_pkg.pages.labs.shown import HTML, display\nprint('a')\n"
    code += "display(HTML('<b>x</b>'))\n"
    first, second, third = run(code + "print('b')")
    assert first["text"] == "a\n" and third["text"] == "b\n"
    assert second["data"]["text/html"] == "<b>x</b>"


def test_error_ends_the_cell_and_shows_its_lines():
    outputs: list[dict] = []
    cells = Cells()
    assert cells.run("def f():\n    return 1 / 0", "cell 1", outputs.append)
    assert not cells.run("print('before')\nf()\nprint('after')", "cell 2", outputs.append)
    assert outputs[0]["text"] == "before\n" and len(outputs) == 2
    lines = outputs[1]["error"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "cell 2", line 2, in <module>'
    assert '  File "cell 1", line 2, in f' in lines and "    return 1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "cells.py" not in outputs[1]["error"]


def test_errors_that_are_no_exceptions_end_only_the_cell():
    cells = Cells()
    outputs: list[dict] = []
    for code, end in (
        ("x = (1", "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ):
        assert not cells.run(code, "cell 1", outputs.append)
        assert outputs[-1]["error"].rstrip().endswith(end)
        assert cells.run("1 + 1", "cell 2", outputs.append)


def test_a_cell_that_prints_without_end_is_cut():
    text = "".join(output["text"] for output in run("for _ in range(300): print('x' * 1000)\n"))
    assert text.endswith(CUT) and text.count("x") <= MOST_TEXT
    assert len(text) == MOST_TEXT + len(CUT)


def test_lists_are_broken_as_in_jupyter_and_other_values_are_not():
    wide = ["x" * 50, "y" * 50]
    assert mime_bundle(wide)["text/plain"] == f"['{'x' * 50}',\n '{'y' * 50}']"

    class Own(list):
        def __repr__(self):
            return "own" * 60

    assert mime_bundle(Own())["text/plain"] == "own" * 60


def test_kinds_of_shown_text():
    bundles = {kind: mime_bundle(getattr(shown, kind)("t")) for kind in shown.__all__[:-1]}
    assert bundles["HTML"]["text/html"] == "t"
    assert bundles["Markdown"]["text/markdown"] == "t"
    assert bundles["SVG"]["image/svg+xml"] == "t"
    assert bundles["Latex"]["text/latex"] == "t"
    assert bundles["Math"]["text/latex"] == r"$\displaystyle t$"


def test_a_class_with_such_a_method_is_shown_as_a_class():
    assert list(mime_bundle(shown.HTML)) == ["text/plain"]


def test_display_outside_of_a_cell_prints(capsys):
    display([1, 2], "a")
    assert capsys.readouterr().out == "[1, 2]\n'a'\n"
