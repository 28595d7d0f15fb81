"""Join printed pages into one PDF: links inside the book, bookmarks, page labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from pdf_print import Printed
from pypdf import PageObject, PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import ArrayObject, DictionaryObject, Fit, IndirectObject, NameObject

Place = tuple[int, float | None]  # a sheet, counted from 0 in the whole file, and a height on it


class Joined:
    """The sheets of all parts, and where each page and each named part of it begins."""

    def __init__(self, parts: Sequence[Printed]):
        self.writer = PdfWriter()
        self.starts: dict[Path, int] = {}
        self.places: dict[tuple[Path, str], Place] = {}
        self.lost: list[str] = []
        self.sheets: list[PageObject] = []
        owners: list[Path] = []
        for part in parts:
            self.starts[part.file] = len(owners)
            for name, (sheet, top) in named(part.pdf).items():
                self.places[part.file, name] = (len(owners) + sheet, top)
            self.sheets += [self.writer.add_page(sheet) for sheet in part.pdf.pages]
            owners += [part.file] * len(part.pdf.pages)
        for sheet, owner in zip(self.sheets, owners, strict=True):
            self._lead_inside(sheet, owner)

    def _lead_inside(self, sheet: PageObject, file: Path) -> None:
        """Lead the links of a sheet to sheets; keep those to the web, drop the others."""
        kept = ArrayObject()
        for annotation in sheet.get("/Annots", ()):
            link = annotation.get_object()
            target = self._target(link, file)
            if target is not None:
                link.pop("/A", None)
                link[NameObject("/Dest")] = self.destination(target)
            if target is not None or ("/A" in link and is_web(link["/A"].get("/URI", ""))):
                kept.append(annotation)
        sheet.pop("/Annots", None)
        if kept:
            sheet[NameObject("/Annots")] = kept

    def _target(self, link: DictionaryObject, file: Path) -> Place | None:
        """Where a link leads in the book; None if it leads out of it."""
        if "/Dest" in link:
            name = unquote(str(link["/Dest"]).removeprefix("/"))
        else:
            address, name = urldefrag(str(link.get("/A", {}).get("/URI", "")))
            if not address.startswith("file:"):
                return None
            file, name = Path(unquote(urlsplit(address).path)), unquote(name)
        if file not in self.starts:
            return None
        if name and (file, name) not in self.places:
            self.lost.append(f"{file.name}#{name}")
        return self.places.get((file, name), (self.starts[file], None))

    def destination(self, place: Place) -> ArrayObject:
        """A place as a PDF's explicit destination."""
        sheet, top = place
        how = fit(top)
        page = self.sheets[sheet].indirect_reference
        return ArrayObject([page, NameObject(how.fit_type), *how.fit_args])

    def bookmark(self, title: str, place: Place, parent: IndirectObject | None = None):
        """Add a bookmark below another, folded; return it."""
        sheet, top = place
        return self.writer.add_outline_item(
            title=title, page_number=sheet, parent=parent, fit=fit(top), is_open=False
        )

    def save(self, file: Path, front: int, title: str, author: str) -> None:
        """Write the file. The first `front` sheets are numbered i, ii, …; the others from 1."""
        labels = self.writer.set_page_label
        labels(0, front - 1, PageLabelStyle.LOWERCASE_ROMAN)
        labels(front, len(self.sheets) - 1, PageLabelStyle.DECIMAL, start=1)
        self.writer.metadata = {"/Title": title, "/Author": author}
        self.writer.page_mode = "/UseOutlines"
        self.writer.compress_identical_objects(remove_unreferenced=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.writer.write(file)


def fit(top: float | None) -> Fit:
    """How a viewer shows a place: from a height on, or the whole sheet."""
    return Fit.fit() if top is None else Fit.xyz(None, top, None)


def named(pdf: PdfReader) -> dict[str, Place]:
    """The sheet and the height of every named part of a printed page."""
    numbers = {page.indirect_reference.idnum: at for at, page in enumerate(pdf.pages)}
    return {
        unquote(name.removeprefix("/")): (numbers[place.page.idnum], float(place.top))
        for name, place in pdf.named_destinations.items()
    }


def is_web(address: object) -> bool:
    """Whether an address is on the web, and so works from a PDF.

    >>> is_web("https://example.org/"), is_web("file:///index.html")
    (True, False)
    """
    return str(address).startswith(("http://", "https://", "mailto:"))
