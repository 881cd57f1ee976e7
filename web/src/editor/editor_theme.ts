// The look of the editor: tokens of the page (site.css), so that light and dark follow it. Syntax colors are here, since
// several pages have editors; light-dark() follows the page's color-scheme into the shadow root.

import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import type { Extension } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const theme = EditorView.theme({
  "&": { color: "var(--code-ink)", backgroundColor: "var(--panel)", fontSize: "var(--editor-size, 13px)", height: "100%" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", fontVariantLigatures: "none", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--accent)" },
  ".cm-cursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  ".cm-line": { padding: "0 12px 0 4px" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--muted)", border: "none", paddingLeft: "6px" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "26px", padding: "0 8px 0 0", cursor: "pointer" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine": { backgroundColor: "color-mix(in oklab, var(--ink) 4%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in oklab, var(--accent) 24%, transparent)",
  },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "color-mix(in oklab, var(--accent) 18%, transparent)", outline: "none" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--ink)" },
  ".cm-panels input, .cm-panels button": { font: "13px var(--text)", background: "var(--panel)", color: "var(--ink)", border: "1px solid var(--line-strong)", borderRadius: "4px" },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "1px solid var(--line-strong)", borderRadius: "6px", boxShadow: "var(--shadow)", fontFamily: "var(--text)", fontSize: "13px", maxWidth: "420px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--accent-ink)" },
  ".cm-diagnostic": { padding: "6px 10px", whiteSpace: "pre-wrap" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
  ".cm-diagnostic-warning": { borderLeft: "3px solid var(--warn)" },
  ".cm-diagnostic-info": { borderLeft: "3px solid var(--accent)" },
  ".cm-lintRange": { backgroundImage: "none", textDecorationLine: "underline", textDecorationStyle: "wavy", textDecorationThickness: "1px", textUnderlineOffset: "3px", paddingBottom: "0" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecorationColor: "var(--bad)" },
  ".cm-lintRange-warning": { backgroundImage: "none", textDecorationColor: "var(--warn)" },
  ".cm-lintRange-info": { backgroundImage: "none", textDecorationColor: "var(--accent)" },
  ".cm-lint-marker": { content: "none", width: "9px", height: "9px", borderRadius: "99px", margin: "6px 0 0 3px" },
  ".cm-lint-marker-error": { content: "none", backgroundColor: "var(--bad)" },
  ".cm-lint-marker-warning": { content: "none", backgroundColor: "var(--warn)", borderRadius: "2px" },
  ".cm-lint-marker-info": { content: "none", backgroundColor: "var(--accent)" },
  ".cm-currentStep": { backgroundColor: "color-mix(in oklab, var(--accent) 13%, transparent)", boxShadow: "inset 3px 0 0 var(--accent)" },
  ".cm-callerStep": { boxShadow: "inset 3px 0 0 color-mix(in oklab, var(--accent) 40%, transparent)" },
  ".cm-selectedStep": { backgroundColor: "color-mix(in oklab, var(--accent) 7%, transparent)" },
  ".cm-lineType": { display: "inline-block", marginLeft: "1.6em", lineHeight: "1.3", padding: "1px 7px", borderRadius: "4px", background: "var(--sunken)", color: "var(--muted)", fontSize: "0.92em", whiteSpace: "nowrap", maxWidth: "calc(100% - 1.6em)", boxSizing: "border-box", overflow: "hidden", textOverflow: "ellipsis", verticalAlign: "bottom" },
  ".cm-lineType b": { color: "var(--ink)", fontWeight: "600" },
  ".cm-lineType.is-bad": { background: "var(--bad-soft)", color: "var(--bad)" },
  ".cm-costGutter .cm-gutterElement": { fontFamily: "var(--text)", fontSize: "11px", padding: "0 6px 0 2px", color: "var(--muted)", lineHeight: "20px" },
  ".cm-collectiveMark": { display: "inline-block", width: "8px", height: "8px", transform: "rotate(45deg)", verticalAlign: "middle", cursor: "pointer" },
  ".cm-changedLine": { backgroundColor: "color-mix(in oklab, var(--good) 12%, transparent)" },
  ".cm-deletedChunk": { backgroundColor: "color-mix(in oklab, var(--bad) 10%, transparent)" },
  ".cm-changedText": { background: "color-mix(in oklab, var(--good) 26%, transparent)" },
  ".cm-deletedText": { background: "color-mix(in oklab, var(--bad) 22%, transparent)" },
  ".cm-collapsedLines": { color: "var(--muted)", background: "var(--sunken)" },
});

const highlight = HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.definitionKeyword, tags.moduleKeyword, tags.operatorKeyword], color: "light-dark(#7a3e9d, #d0a6ec)" },
  { tag: [tags.string, tags.special(tags.string)], color: "light-dark(#2f6b3a, #9ad0a2)" },
  { tag: [tags.number, tags.bool, tags.null], color: "light-dark(#a04a00, #efb27a)" },
  { tag: tags.comment, color: "light-dark(#6a6f79, #8d939f)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.definition(tags.variableName))], color: "light-dark(#1f4f9e, #9cbcff)" },
  { tag: tags.definition(tags.className), color: "light-dark(#1f4f9e, #9cbcff)", fontWeight: "600" },
  { tag: [tags.meta, tags.annotation], color: "light-dark(#a04a00, #efb27a)" },
  { tag: tags.invalid, color: "var(--bad)" },
]);

export function editorTheme(): Extension {
  return [theme, syntaxHighlighting(highlight)];
}
