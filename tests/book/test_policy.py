"""The Content Security Policy of a page."""

import policy
from policy import MARK, add_policy, handlers, scripts

HEAD = "<!doctype html><html><head><title>t</title></head><body>"


def test_scripts_that_are_written_in_the_page_are_named():
    page = (
        '<script>one()</script><script src="a.js"></script>'
        '<script type="application/json">{"two": 2}</script><script type="module">three()</script>'
    )
    assert list(scripts(page)) == ["one()", "three()"]


def test_handlers_are_named():
    expected = {
        '<b onclick="f()">': ["f()"],
        "<input type=range oninput='g(1 &gt; 2)'>": ["g(1 > 2)"],
        '<b title="a > b" onclick="f()" onkeydown="h()">': ["f()", "h()"],
        "<p>write onclick='x' here</p>": [],
        '<b class="on">': [],
    }
    assert {tag: list(handlers(tag)) for tag in expected} == expected


def test_only_pages_with_a_lab_may_start_python():
    plain = policy.policy(HEAD)
    lab = policy.policy('<script src="../_static/labs/labs.js?v=1">')
    assert "wasm" not in plain and "blob:" not in plain.split("script-src")[1]
    assert "'wasm-unsafe-eval'" in lab and "worker-src blob:" in lab
    assert "unsafe-inline" not in plain.split("script-src")[1] and "'unsafe-eval'" not in lab


def test_the_policy_comes_first_and_once(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f"{HEAD}<script>f()</script></body></html>", "utf-8")
    add_policy(path)
    once = path.read_text("utf-8")
    assert once.index(MARK) < once.index("<title>")
    add_policy(path)
    assert path.read_text("utf-8") == once


def test_what_is_no_page_stays_as_it_is(tmp_path):
    path = tmp_path / "part.html"
    path.write_text("<b>part</b>", "utf-8")
    add_policy(path)
    assert path.read_text("utf-8") == "<b>part</b>"


def test_every_page_of_the_site_has_one(site):
    pages = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    heads = {path: path.read_text("utf-8")[:4000] for path in pages}
    assert [path for path, text in heads.items() if "<head" in text and MARK not in text] == []
