/* Search that works from disk. The texts of all pages come from search-pages.js, which
   _ext/searching.py writes; Sphinx's language_data.js gives the stemmer and the stop words.

   A page is found if each word of the query, or a form of it, or else a word that begins with it,
   occurs in the page. A word that no page has is replaced by one that differs in one letter. */
"use strict";

(() => {
  const PARTS_SHOWN = 3;
  const EXCERPT = 220; // characters
  const stemmer = new Stemmer();
  const stems = new Map(); // every word of the pages → its stem
  const split = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];

  function stem(word) {
    if (!stems.has(word)) stems.set(word, stemmer.stemWord(word));
    return stems.get(word);
  }

  function count(words) {
    const counts = new Map();
    for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
    return counts;
  }

  /* Every part of every page with the counts of its stems; in how many parts each stem is. */
  function makeIndex(pages) {
    const frequency = new Map();
    const parts = pages.flatMap((page) =>
      page.parts.map(([anchor, title, text, code]) => {
        const words = split(`${title} ${text} ${code}`).map(stem);
        return { page, anchor, title, text, code, length: words.length, counts: count(words),
          inTitle: new Set(split(title).map(stem)) };
      }));
    for (const part of parts)
      for (const word of part.counts.keys()) frequency.set(word, (frequency.get(word) ?? 0) + 1);
    const mean = parts.reduce((sum, part) => sum + part.length, 0) / parts.length;
    return { parts, frequency, mean };
  }

  /* Whether one letter replaced, left out or added, or two swapped, makes `a` of `b`. */
  function differInOne(a, b) {
    if (Math.abs(a.length - b.length) > 1) return false;
    let i = 0;
    while (i < a.length && a[i] === b[i]) i++;
    return a.slice(i + 1) === b.slice(i + 1) || a.slice(i) === b.slice(i + 1) ||
      a.slice(i + 1) === b.slice(i) ||
      (a[i] === b[i + 1] && a[i + 1] === b[i] && a.slice(i + 2) === b.slice(i + 2));
  }

  /* What a word of the query stands for: the stems to look for, and the word as it is shown. */
  function understand(word, index) {
    const known = [...stems.keys()].filter((other) => index.frequency.has(stems.get(other)));
    const own = stemmer.stemWord(word);
    if (index.frequency.has(own)) return { word, stems: new Set([own]) };
    const longer = word.length > 2 ? known.filter((other) => other.startsWith(word)) : [];
    if (longer.length) return { word, stems: new Set(longer.map(stem)) };
    const near = word.length > 3 ? known.filter((other) => differInOne(word, other)) : [];
    if (!near.length) return { word, stems: new Set() };
    const often = (other) => index.frequency.get(stem(other));
    const best = near.reduce((a, b) => (often(b) > often(a) ? b : a));
    return { word: best, stems: new Set([stem(best)]), instead: word };
  }

  /* BM25 with weight for words in titles; 0 if no term occurs. */
  function score(part, terms, index) {
    let sum = 0, found = 0;
    for (const term of terms)
      for (const word of term.stems) {
        const times = part.counts.get(word) ?? 0;
        if (!times) continue;
        const rare = Math.log(1 + index.parts.length / index.frequency.get(word));
        const long = 0.25 + (0.75 * part.length) / index.mean;
        const inTitle = part.inTitle.has(word) ? 2 + 2 / part.inTitle.size : 0;
        sum += rare * (times / (times + 1.2 * long) + inTitle);
        found++;
      }
    return sum * found;
  }

  /* Pages with every term, or else with as many as there are; chapters first, then by score. */
  function find(terms, index) {
    const found = new Map();
    for (const part of index.parts) {
      const points = score(part, terms, index);
      if (!points) continue;
      const page = found.get(part.page) ?? { ...part.page, has: new Set(), parts: [] };
      for (const term of terms)
        if ([...term.stems].some((word) => part.counts.has(word))) page.has.add(term);
      page.parts.push({ ...part, points });
      found.set(part.page, page);
    }
    const most = Math.max(0, ...[...found.values()].map((page) => page.has.size));
    const pages = [...found.values()].filter((page) => page.has.size === most);
    for (const page of pages) {
      page.parts.sort((a, b) => b.points - a.points);
      const title = split(page.title);
      const named = ({ word, stems: sought }) =>
        title.includes(word) ? 2 : Number(title.some((other) => sought.has(stem(other))));
      page.points = page.parts[0].points * (1 + terms.reduce((sum, t) => sum + named(t), 0));
    }
    return pages.sort((a, b) => a.rank - b.rank || b.points - a.points);
  }

  function element(name, text = "", attributes = {}) {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(text);
    return made;
  }

  /* The stretch of a part's text, or else of its code, with the most terms, these marked. */
  function excerpt(part, terms) {
    const wanted = (word) => terms.some((term) => term.stems.has(stem(word.toLowerCase())));
    const named = [part.text, part.code].find((some) => split(some).some(wanted));
    const text = named ?? part.text;
    const words = [...text.matchAll(/[\p{L}\p{N}_]+/gu)];
    const hits = words.filter(([word]) => wanted(word));
    const within = (start) => new Set(hits.filter(({ index }) =>
      index >= start && index < start + EXCERPT).map(([word]) => stem(word.toLowerCase()))).size;
    const best = hits.reduce((a, b) => (a && within(a.index) >= within(b.index) ? a : b), null);
    const from = Math.max(0, (best?.index ?? 0) - 60);
    const start = from && words.find(({ index }) => index >= from).index;
    const end = words.findLast(({ index }) => index <= start + EXCERPT);
    const stop = end ? Math.min(text.length, end.index + end[0].length + 1) : 0;
    const shown = element("p", start ? "… " : "", { className: "context" });
    let at = start;
    for (const { 0: word, index } of hits.filter((hit) => hit.index >= start && hit.index < stop)) {
      shown.append(text.slice(at, index), element("mark", word));
      at = index + word.length;
    }
    shown.append(text.slice(at, stop) + (stop < text.length ? " …" : ""));
    return shown;
  }

  function show(pages, terms, out) {
    const list = element("ul", "", { className: "search" });
    const root = document.documentElement.dataset.content_root;
    for (const page of pages) {
      const item = element("li");
      item.append(element("a", page.title, { href: root + page.url, className: "found-page" }));
      for (const part of page.parts.slice(0, PARTS_SHOWN)) {
        if (part.anchor) {
          const href = `${root}${page.url}#${part.anchor}`;
          item.append(element("a", part.title, { href, className: "found-part" }));
        }
        if (part.text) item.append(excerpt(part, terms));
      }
      list.append(item);
    }
    out.append(list);
  }

  function search(query, out) {
    const index = makeIndex(coursePages);
    const words = split(query);
    const telling = words.filter((word) => !stopwords.includes(word));
    const terms = (telling.length ? telling : words).map((word) => understand(word, index));
    const pages = find(terms, index);
    const quoted = (some) => some.map((word) => `“${word}”`).join(", ");
    const corrected = terms.filter((term) => term.instead);
    const status = element("p", "", { className: "search-summary", role: "status" });
    if (corrected.length)
      status.append(`No page has ${quoted(corrected.map((term) => term.instead))}. `,
        `Shown instead: ${quoted(corrected.map((term) => term.word))}. `);
    const missing = terms.filter((term) => !pages.some((page) => page.has.has(term)));
    if (missing.length) status.append(`No page has ${quoted(missing.map((term) => term.word))}. `);
    status.append(`${pages.length} page${pages.length === 1 ? "" : "s"} found.`);
    out.append(status);
    show(pages, terms, out);
    const marked = terms.map((term) => term.word).join(" "); // on the page that is opened
    out.addEventListener("click", () => localStorage.setItem("sphinx_highlight_terms", marked));
  }

  const query = new URLSearchParams(window.location.search).get("q");
  document.querySelectorAll('input[name="q"]').forEach((input) => (input.value = query ?? ""));
  if (query?.trim()) search(query, document.getElementById("search-results"));
})();
