"""Sanitize Markdown, HTML and images from students: they keep their look, and can't act.

HTML goes through nh3 (the ammonia library) with a short allow-list: no address, no script, no
class, no id. Markdown is rendered here first, because nbconvert would let its HTML through. TeX
commands of MathJax that make links, load code or redefine others are broken.
"""

import base64
import re
import struct
from html import escape

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

MAX_MARKDOWN = 20_000  # characters to render; longer text is shown as it was written
MAX_HTML = 100_000  # characters
MAX_TAGS = 10_000
MAX_COPIES = 1_000_000  # formatting tags times all tags: parsing copies unclosed ones
MAX_NESTED = 64
MAX_FIELDS = 5_000  # of a Markdown table
MAX_FORMULAS = 50
MAX_IMAGE = 2_000_000  # bytes
MAX_SIDE = 10_000
MAX_PIXELS = 20_000_000
TAGS = {
    "b",
    "blockquote",
    "br",
    "caption",
    "code",
    "dd",
    "div",
    "dl",
    "dt",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
}
_COLOR = r"#[0-9a-f]{3,8}|[a-z]+|(?:rgb|hsl)a?\([0-9., %/]{5,60}\)"
STYLES = {  # each property with the values that it may have
    "background-color": _COLOR,
    "color": _COLOR,
    "font-style": "normal|italic|oblique",
    "font-weight": "normal|bold|bolder|lighter|[1-9]00",
    "text-align": "left|right|center|justify|start|end",
    "text-decoration": "none|underline|overline|line-through",
    "vertical-align": "baseline|sub|super|top|text-top|middle|bottom|text-bottom",
    "white-space": "normal|nowrap|pre|pre-wrap|pre-line",
}
# MathJax acts on these: links, attributes, loading, and definitions that last for the whole page.
COMMANDS = (
    "action|bbox|begingroup|class|csname|cssId|data|def|DeclareMathOperator|edef|endgroup|eqref|"
    "expandafter|gdef|global|href|includegraphics|label|let|loadmacros|mathtip|mmlToken|newcommand|"
    "newenvironment|providecommand|ref|renewcommand|renewenvironment|require|style|texttip|tag|"
    "toggle|unicode|url|xdef"
)


def _attribute(name: str, value: str) -> str | None:
    """What is kept of an attribute: styles by STYLES, and the spans of cells up to 999."""
    if name != "style":
        return value if re.fullmatch("[0-9]{1,3}", value) else None
    kept = []
    for declaration in value.split(";"):
        style, _, text = (part.strip().lower() for part in declaration.partition(":"))
        if style in STYLES and re.fullmatch(STYLES[style], text):
            kept.append(f"{style}:{text}")
    return ";".join(kept) or None


_CLEANER = nh3.Cleaner(
    tags=TAGS,
    clean_content_tags={"script", "style", "title"},
    attributes={"*": {"style"}, "td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan"}},
    attribute_filter=lambda tag, name, value: _attribute(name, value),
    link_rel=None,
)
# These two classes keep MathJax, version 2 or 3, from looking for TeX in the box.
_NO_TEX = "tex2jax_ignore mathjax_ignore"
_BOX = '<div{} style="overflow: auto">{}</div>'
_COMMAND = re.compile(rf"\\(?=\s*(?:{COMMANDS})(?![a-zA-Z]))")
_PLAIN = re.compile(r"(?!.*://)[\w\s.,;:!?'\"()%+=/*–—-]*", re.DOTALL)
_FORMATTING = re.compile(r"<(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)\b", re.I)
_TAG = re.compile(r"<(/?)(\w+)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_html(text: str) -> str | None:
    """Sanitized HTML in a box that MathJax ignores; None if it is too large or too deep.

    Example:

        >>> clean_html("<b onclick='x()'>1</b><script>x()</script>")
        '<div class="tex2jax_ignore mathjax_ignore" style="overflow: auto"><b>1</b></div>'
    """
    tags = text.count("<")
    if len(text) > MAX_HTML or tags > MAX_TAGS:
        return None
    if len(_FORMATTING.findall(text)) * tags > MAX_COPIES:
        return None
    cleaned = _sanitized(text)
    return None if _depth(cleaned) > MAX_NESTED else _BOX.format(f' class="{_NO_TEX}"', cleaned)


def clean_markdown(text: str, rendered: bool = True) -> str:
    """A student's Markdown without active HTML, links or images, as Markdown or HTML.

    Plain prose comes back unchanged. Anything else comes back as one line of HTML, which Markdown
    leaves as it is; links and images appear as the text that the student wrote. Formulas stay,
    without the TeX commands that act. Call it once per text.

    Args:
        rendered: False shows the source.
    """
    text = printable(text)
    if len(text) <= MAX_MARKDOWN and _PLAIN.fullmatch(text):
        return text
    if rendered and len(text) <= MAX_MARKDOWN and not _is_slow(text):
        cleaned = _sanitized(_markdown().render(text))
    else:
        cut = text if len(text) <= MAX_HTML else f"{text[:MAX_HTML]}\n[the rest is not shown]"
        cleaned = f"<pre>{escape(cut)}</pre>"
    cleaned = _COMMAND.sub("\\\\\u2060", cleaned)
    return _BOX.format("", cleaned.strip().replace("\n", "&#10;"))


def printable(text: str) -> str:
    """The text without control characters, except tab and newline, and without surrogates."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text.replace("\r\n", "\n")))


def _sanitized(html: str) -> str:
    return printable(_CLEANER.clean(_SURROGATE.sub("\ufffd", html)))


def _depth(sanitized: str) -> int:
    deepest = depth = 0
    for closing, name in _TAG.findall(sanitized):
        if name not in ("br", "hr"):
            depth += -1 if closing else 1
            deepest = max(deepest, depth)
    return deepest


def _is_slow(text: str) -> bool:
    """Whether rendering would make the text much longer, as it does the short rows of a table."""
    lines = text.splitlines()
    widest = max((line.count("|") for line in lines), default=0)
    return widest * len(lines) > MAX_FIELDS or text.count("\\begin") > MAX_FORMULAS


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
    return f"{sign}{escape(token.content.strip())}{sign}" + ("" if sign == "$" else "\n")


_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # the JPEG segments that hold its size


def checked_image(text: str, kind: str, room: int) -> str | None:
    """The base64 of a PNG or JPEG, encoded again; None if it is not one, or is too large.

    Only its header is read, and the browser decodes the rest.

    Args:
        kind: a MIME type of IMAGES.
        room: the most characters to return.
    """
    if len(text) > 2 * MAX_IMAGE:
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
        width, height = IMAGES[kind](data)
    except (ValueError, struct.error, IndexError):
        return None
    fits = 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS
    encoded = base64.b64encode(data).decode()
    return encoded if fits and len(data) <= MAX_IMAGE and len(encoded) <= room else None


def _png(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"):
        raise ValueError("not a PNG")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\xff\xd8\xff"):
        raise ValueError("not a JPEG")
    at = 2
    while data[at] == 0xFF and data[at + 1] not in _FRAMES:
        at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    if data[at] != 0xFF:
        raise ValueError("not a JPEG")
    height, width = struct.unpack_from(">HH", data, at + 5)
    return width, height


IMAGES = {"image/png": _png, "image/jpeg": _jpeg}
