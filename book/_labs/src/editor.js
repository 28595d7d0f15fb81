/* An editor for one cell, with the book's look. Escape, then Tab leaves it. */
import { closeBrackets } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import {
  bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting,
} from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

// The colors are variables of labs.css, which knows light and dark.
const colors = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], color: "var(--lab-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--lab-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--lab-number)" },
  { tag: tags.comment, color: "var(--lab-comment)", fontStyle: "italic" },
  { tag: [tags.definition(tags.variableName), tags.function(tags.definition(tags.variableName)),
    tags.className], color: "var(--lab-name)" },
]);

/* Returns {code(), set(text), focus()}. run: called for Shift+Enter and Ctrl+Enter. */
export const makeEditor = (parent, text, label, { run, changed }) => {
  const launch = () => {
    run();
    return true;
  };
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([
          { key: "Shift-Enter", run: launch },
          { key: "Mod-Enter", run: launch },
          indentWithTab,
          ...defaultKeymap,
          ...historyKeymap,
        ]),
        history(),
        drawSelection({ cursorBlinkRate: still ? 0 : 1200 }),
        python(),
        indentUnit.of("    "),
        EditorState.tabSize.of(4),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        syntaxHighlighting(colors),
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorView.updateListener.of((update) => update.docChanged && changed?.()),
      ],
    }),
  });
  return {
    code: () => view.state.doc.toString(),
    set: (code) =>
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: code } }),
    focus: () => view.focus(),
  };
};
