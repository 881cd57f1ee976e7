// A Python editor in a shadow root.
//
// The page's Content-Security-Policy allows no inline style element. CodeMirror's style-mod 4.1 writes one into a
// document's head, but uses a constructed style sheet in a shadow root, which the policy allows.

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { pythonLanguage } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput, indentUnit } from "@codemirror/language";
import { lintGutter, setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { editorTheme } from "./editor_theme.ts";
import { lineMarkers, setLineMarks, type LineMarks } from "./line_markers.ts";

export interface LineDiagnostic {
  line: number;
  severity: "error" | "warning" | "info";
  message: string;
}

export interface PythonEditorOptions {
  parent: HTMLElement;
  text: string;
  label: string;
  isReadOnly?: boolean;
  /** Wrap long lines, so that the type beside a line never covers it. */
  isWrapped?: boolean;
  onChange?: (text: string) => void;
  onSelectLine?: (line: number) => void;
  onRun?: () => void;
}

export class PythonEditor {
  readonly view: EditorView;
  private readonly readOnly = new Compartment();

  constructor(options: PythonEditorOptions) {
    const root = options.parent.shadowRoot ?? options.parent.attachShadow({ mode: "open" });
    this.view = new EditorView({
      root,
      parent: root,
      state: EditorState.create({ doc: options.text, extensions: this.extensions(options) }),
    });
    // Fill the host: heights in percent end at a shadow root unless its first box has one.
    this.view.dom.style.height = "100%";
  }

  private extensions(options: PythonEditorOptions): Extension[] {
    const run = options.onRun;
    return [
      lintGutter(),
      lineNumbers({
        domEventHandlers: {
          click: (view, block) => {
            options.onSelectLine?.(view.state.doc.lineAt(block.from).number);
            return true;
          },
        },
      }),
      lineMarkers((line) => options.onSelectLine?.(line)),
      history(),
      drawSelection(),
      indentOnInput(),
      indentUnit.of("    "),
      EditorState.tabSize.of(4),
      bracketMatching(),
      closeBrackets(),
      highlightActiveLine(),
      pythonLanguage,
      editorTheme(),
      options.isWrapped ? EditorView.lineWrapping : [],
      this.readOnly.of(readOnlyExtensions(options.isReadOnly ?? false)),
      // Tab indents, so leaving needs another way: Escape then Tab, or Ctrl-M (Shift-Alt-M on a Mac), which CodeMirror has.
      keymap.of([
        ...(run ? [{ key: "Mod-Enter", run: () => (run(), true) }] : []),
        ...closeBracketsKeymap,
        ...historyKeymap,
        ...defaultKeymap,
        indentWithTab,
      ]),
      EditorView.contentAttributes.of({ "aria-label": options.label, spellcheck: "false", tabindex: "0" }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) options.onChange?.(update.state.doc.toString());
      }),
    ];
  }

  get text(): string {
    return this.view.state.doc.toString();
  }

  setText(text: string): void {
    if (text !== this.text) this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text } });
  }

  setReadOnly(isReadOnly: boolean): void {
    this.view.dispatch({ effects: this.readOnly.reconfigure(readOnlyExtensions(isReadOnly)) });
  }

  setMarks(marks: LineMarks): void {
    this.view.dispatch({ effects: setLineMarks.of(marks) });
  }

  setDiagnostics(diagnostics: LineDiagnostic[]): void {
    const doc = this.view.state.doc;
    const converted = diagnostics.flatMap((diagnostic): Diagnostic[] => {
      if (diagnostic.line < 1 || diagnostic.line > doc.lines) return [];
      const line = doc.line(diagnostic.line);
      const from = line.from + (line.text.length - line.text.trimStart().length);
      return [{ from, to: line.to, severity: diagnostic.severity, message: diagnostic.message }];
    });
    this.view.dispatch(setDiagnostics(this.view.state, converted));
  }

  /** Scroll a line into view, without moving the cursor: the reader may be typing. */
  revealLine(line: number): void {
    if (line < 1 || line > this.view.state.doc.lines) return;
    const scroller = scrollingElement(this.view.scrollDOM);
    if (scroller === null) return;
    // CodeMirror's own scrollIntoView also scrolls the page: on a narrow screen it moved the devices out of sight.
    const block = this.view.lineBlockAt(this.view.state.doc.line(line).from);
    const margin = Math.min(60, scroller.clientHeight / 4);
    if (block.top - margin < scroller.scrollTop) scroller.scrollTop = block.top - margin;
    else if (block.bottom + margin > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = block.bottom + margin - scroller.clientHeight;
  }

  focus(): void {
    this.view.focus();
  }

  destroy(): void {
    this.view.destroy();
  }
}

function readOnlyExtensions(isReadOnly: boolean): Extension {
  return isReadOnly ? [EditorState.readOnly.of(true), EditorView.editable.of(false)] : [];
}

/** The element around the text that scrolls, below the page itself; null if all lines are visible. */
function scrollingElement(start: HTMLElement): HTMLElement | null {
  for (let element: HTMLElement | null = start; element !== null && element !== document.body; ) {
    if (element.scrollHeight > element.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(element).overflowY)) return element;
    const root: Node = element.getRootNode();
    element = element.parentElement ?? (root instanceof ShadowRoot ? (root.host as HTMLElement) : null);
  }
  return null;
}
