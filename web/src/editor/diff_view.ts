// Two versions of a program, one view: removed lines above the lines that replace them.

import { pythonLanguage } from "@codemirror/lang-python";
import { unifiedMergeView } from "@codemirror/merge";
import { EditorState } from "@codemirror/state";
import { EditorView, lineNumbers } from "@codemirror/view";
import { editorTheme } from "./editor_theme.ts";

export function showDiff(parent: HTMLElement, before: string, after: string, label: string): EditorView {
  const root = parent.shadowRoot ?? parent.attachShadow({ mode: "open" });
  return new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: after,
      extensions: [
        lineNumbers(),
        pythonLanguage,
        editorTheme(),
        EditorState.readOnly.of(true),
        EditorView.editable.of(false),
        EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged: { margin: 3, minSize: 6 } }),
      ],
    }),
  });
}
