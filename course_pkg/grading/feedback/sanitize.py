"""Markdown and HTML from outside, made fit to show: it looks as it did and does nothing.

nbconvert's Markdown lets HTML through, a fence called mermaid writes its text out as HTML, some
texts hang it, and MathJax runs commands. So Markdown is turned into HTML here, by a parser that
stays linear, and both go through one short list of tags that hold no address, no name, no script.

Chapter: appendix/for-instructors.
"""

import re
from html import escape, unescape

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

MAX_MARKDOWN = 20_000
MAX_HTML = 100_000
MAX_TAGS = 10_000
MAX_FIELDS = 5_000  # of a Markdown table
MAX_FORMULAS = 50
MAX_NESTED = 32
# fmt: off
TAGS = {
    "b", "blockquote", "br", "caption", "code", "dd", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "li", "ol", "p", "pre", "s", "small", "span", "strong", "sub",
    "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul",
}
STYLES = {
    "background-color", "color", "font-style", "font-weight", "text-align", "text-decoration",
    "vertical-align", "white-space",
}
# What MathJax would act on: links, attributes, loading, and definitions, which last for the page.
COMMANDS = (
    "action", "bbox", "begingroup", "class", "csname", "cssId", "data", "def",
    "DeclareMathOperator", "edef", "endgroup", "eqref", "expandafter", "gdef", "global", "href",
    "includegraphics", "label", "let", "loadmacros", "mathtip", "mmlToken", "newcommand",
    "newenvironment", "providecommand", "ref", "renewcommand", "renewenvironment", "require",
    "style", "texttip", "tag", "toggle", "unicode", "url", "xdef",
)
# fmt: on
# MathJax looks for mathematics in text; these two names keep it out, whatever its version.
_QUIET = "tex2jax_ignore mathjax_ignore"
_BOX = '<div{} style="overflow: auto">{}</div>'
_COMMAND = re.compile(rf"\\(?=\s*(?:{'|'.join(COMMANDS)})(?![a-zA-Z]))")
_PLAIN = re.compile(r"(?!.*://)[\w\s.,;:!?'\"()%+=/*–—-]*", re.DOTALL)
_SILENT = re.compile(r"<!--.*?(?:-->|\Z)|<(style|script|title)\b.*?(?:</\1\s*>|\Z)", re.S | re.I)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*+)([^<>]*+)>")
_VOID = ("br", "hr")
_ATTRIBUTE = re.compile(r"""\b(style|colspan|rowspan)\s*=\s*("[^"]*"|'[^']*'|[^\s"']+)""", re.I)
_COUNT = re.compile(r"[0-9]{1,3}")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_LONG_NUMBER = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")
_HALF = re.compile("[\ud800-\udfff]")
_VALUE = re.compile(r"[#a-z0-9.% -]{1,40}|rgba?\([0-9., %]{1,40}\)", re.IGNORECASE)


def clean_html(text: str) -> str | None:
    """Tables and marked-up text from hostile HTML, in a box of its own; None if it is too much.

    >>> clean_html("<b onclick='x()'>1</b><script>x()</script>")
    '<div class="tex2jax_ignore mathjax_ignore" style="overflow: auto"><b>1</b></div>'
    """
    if len(text) > MAX_HTML:
        return None
    cleaned = _cleaned(_SILENT.sub("", text))
    return None if cleaned is None else _BOX.format(f' class="{_QUIET}"', cleaned)


def clean_markdown(text: str, rendered: bool = True) -> str:
    """A student's Markdown, fit to show: no HTML that acts, no address to follow, no picture.

    Plain prose comes back as it is. Anything else comes back as HTML in one line, which Markdown
    takes as it is; links and pictures stand there as they were written. Mathematics stays, without
    the commands that act or redefine. rendered: False to show it as it was written. Call it once.

    >>> clean_markdown("*Plain* prose.")
    '*Plain* prose.'
    >>> "[x](javascript:y)" in clean_markdown("[x](javascript:y)")
    True
    """
    text = printable(text)
    if len(text) <= MAX_MARKDOWN and _PLAIN.fullmatch(text):
        return text
    cleaned = None
    if rendered and len(text) <= MAX_MARKDOWN and not _slow(text):
        cleaned = _cleaned(_markdown().render(text))
    if cleaned is None:
        cut = text if len(text) <= MAX_HTML else f"{text[:MAX_HTML]}\n[the rest is not shown]"
        cleaned = f"<pre>{escape(cut)}</pre>"
    cleaned = _COMMAND.sub("\\\\\u2060", cleaned)
    return _BOX.format("", cleaned.strip().replace("\n", "&#10;"))


def _slow(text: str) -> bool:
    """Whether the parser would make much more of a text than it is, as of the rows of a table."""
    lines = text.splitlines()
    widest = max((line.count("|") for line in lines), default=0)
    return widest * len(lines) > MAX_FIELDS or text.count("\\begin") > MAX_FORMULAS


def _unescaped(html: str) -> str:
    return unescape(_LONG_NUMBER.sub("\ufffd", html))


def printable(text: str) -> str:
    """A text without control characters but tab and newline, and without halves of characters.

    >>> printable("a\\x00b\\r\\nc\\u202e")
    'ab\\nc'
    """
    return _HALF.sub("\ufffd", _CONTROL.sub("", text.replace("\r\n", "\n")))


def _cleaned(html: str) -> str | None:
    """HTML of the listed tags alone, every tag closed; None if it is too much.

    Every sign that is not part of a listed tag is text. No library is used: those at hand build a
    browser's tree, in which 8 kB of unclosed tags become 3 MB.
    """
    out, open_tags, at = [], [], 0
    if html.count("<") > MAX_TAGS:
        return None
    for tag in _TAG.finditer(html):
        out.append(_text(html[at : tag.start()]))
        at = tag.end()
        name, closing = tag[2].lower(), tag[1]
        if name not in TAGS:
            continue
        if name in _VOID:
            out.append(f"<{name}>")
        elif not closing:
            open_tags.append(name)
            out.append(f"<{name}{_attributes(tag[3])}>")
            if len(open_tags) > MAX_NESTED:
                return None
        elif name in open_tags:
            while (last := open_tags.pop()) != name:
                out.append(f"</{last}>")
            out.append(f"</{name}>")
    out.append(_text(html[at:]))
    return "".join([*out, *(f"</{name}>" for name in reversed(open_tags))])


def _text(html: str) -> str:
    return escape(printable(_unescaped(html)))


def _attributes(written: str) -> str:
    kept = {}
    for name, value in _ATTRIBUTE.findall(written):
        name, value = name.lower(), _unescaped(value.strip("\"'"))
        if name == "style":
            parts = (part.partition(":") for part in value.split(";"))
            pairs = [(key.strip().lower(), text.strip()) for key, _, text in parts]
            value = "; ".join(f"{k}: {v}" for k, v in pairs if k in STYLES and _VALUE.fullmatch(v))
        elif not _COUNT.fullmatch(value):
            value = ""
        if value:
            kept[name] = value
    return "".join(f' {name}="{value}"' for name, value in kept.items())


def _markdown() -> MarkdownIt:
    rules = ["image", "link", "autolink", "reference", "html_block", "html_inline"]
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20})
    parser.enable(["table", "strikethrough"]).disable(rules)
    parser.use(dollarmath_plugin, allow_labels=False).use(amsmath_plugin)
    parser.add_render_rule("math_inline", lambda _, tokens, i, *more: _math("$", tokens[i]))
    parser.add_render_rule("math_block", lambda _, tokens, i, *more: _math("$$", tokens[i]))
    parser.add_render_rule("amsmath", lambda _, tokens, i, *more: _math("", tokens[i]))
    return parser


def _math(sign: str, token: Token) -> str:
    return f"{sign}{escape(token.content.strip())}{sign}\n"[: None if sign != "$" else -1]
