"""A slider over frames that were computed before, for pages without a kernel."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_FRAMES = 20  # each one is a picture in the page
# Hidden frames keep their place, so that the page doesn't jump and SVG definitions stay valid: two
# frames may define the same clip path, and the first definition counts.
STYLE = """
.course-slider .frames{display:grid}
.course-slider .frame{grid-area:1/1;visibility:hidden;min-width:0;overflow-x:auto}
.course-slider .frame.shown{visibility:visible}
.course-slider .frame svg{max-width:100%;height:auto}
.course-slider clipPath *{visibility:visible}
.course-slider .control{display:flex;flex-wrap:wrap;gap:.6em;align-items:center;max-width:36em}
.course-slider .control span{flex-basis:100%}
.course-slider input{flex:1 1 6em;min-width:6em;accent-color:#2f7ebc}
.course-slider button{width:2.4em;height:2.4em;border:1px solid #767676;border-radius:6px}
.course-slider button{background:none;color:inherit}
.course-slider output{font-weight:600;font-variant-numeric:tabular-nums}
@media print{.course-slider .control{display:none}}
"""
MOVE = (
    "var s=this.closest('.course-slider'),i=s.querySelector('input'),"
    "f=s.querySelectorAll('.frame');i.value=+i.value+STEP;"
    "f.forEach(function(e,k){e.classList.toggle('shown',k==i.value)});"
    "s.querySelector('output').textContent=f[i.value].dataset.value;"
    "i.setAttribute('aria-valuetext',f[i.value].dataset.value)"
)


@dataclass(frozen=True)
class Slider:
    """Frames and the control that moves between them; Jupyter shows it by `_repr_html_`.

    Attributes:
        name: what the reader chooses, as HTML text.
        values: how each choice is written.
        alt: what a person who can't see the frames needs to know.
    """

    name: str
    values: tuple[str, ...]
    frames: tuple[str, ...]
    start: int
    alt: str

    def _repr_html_(self) -> str:
        frames = "".join(
            f'<div class="frame mathjax_process{" shown" if at == self.start else ""}" '
            f'role="group" data-value="{html.escape(value)}" '
            f'aria-label="{html.escape(f"{self.alt} {self.name}: {value}")}">{frame}</div>'
            for at, (value, frame) in enumerate(zip(self.values, self.frames, strict=True))
        )
        first = html.escape(self.values[self.start])
        button = '<button type="button" aria-label="{}" onclick="{}">{}</button>'
        return (
            f'<div class="course-slider"><style>{STYLE}</style><div class="control">'
            f"<span>{self.name}: <output>{first}</output></span>"
            + button.format("previous", MOVE.replace("STEP", "-1"), "&#8249;")
            + f'<input type="range" min="0" max="{len(self.frames) - 1}" value="{self.start}" '
            f'aria-label="{html.escape(self.name)}" aria-valuetext="{first}" '
            f'oninput="{MOVE.replace("STEP", "0")}">'
            + button.format("next", MOVE.replace("STEP", "1"), "&#8250;")
            + f'</div><div class="frames">{frames}</div></div>'
        )


def slider(frames: Mapping[Any, Any], name: str, alt: str, start: Any = None) -> Slider:
    r"""A slider over `frames`.

    Args:
        frames: for each value of the choice, a matplotlib figure (drawn as SVG, and closed), an
            object with `_repr_html_`, or HTML text, in which \( \) is mathematics.
        alt: a sentence for people who can't see the frames.
        start: the value shown first; the first one by default.
    """
    if not 2 <= len(frames) <= MOST_FRAMES:
        raise ValueError(f"expected 2 to {MOST_FRAMES} frames, given {len(frames)}")
    if not alt.strip():
        raise ValueError("alt is empty; say in a sentence what the frames show")
    keys = list(frames)
    if start is not None and start not in keys:
        raise ValueError(f"start={start!r} is not one of the values {keys}")
    shown = tuple(_as_html(frame) for frame in frames.values())
    first = 0 if start is None else keys.index(start)
    return Slider(name, tuple(map(str, keys)), shown, first, alt)


def _as_html(frame: Any) -> str:
    if isinstance(frame, str):
        return frame
    if hasattr(frame, "savefig"):
        return _svg(frame)
    if hasattr(frame, "_repr_html_"):
        return frame._repr_html_()
    raise TypeError(
        f"a frame is a matplotlib figure, HTML text or an object with _repr_html_, given "
        f"{type(frame).__name__}"
    )


def _svg(figure: Any) -> str:
    """A matplotlib figure as an <svg> element; the figure is closed, so Jupyter shows it once."""
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
