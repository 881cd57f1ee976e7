// Turns <textarea data-editor="python"> into an editor, and <div data-diff> with two <pre> into a diff.
//
// Without JavaScript the textarea and the texts stay as they are. The textarea keeps its name and its value, so forms,
// autosave and htmx see every change through its "input" event. A diagnostic for line 3:
//   textarea.dispatchEvent(new CustomEvent("editor:diagnostics", { detail: [{ line: 3, severity: "error", message: "..." }] }))

import { showDiff } from "./diff_view.ts";
import { PythonEditor, type LineDiagnostic } from "./python_editor.ts";

const editors = new WeakMap<HTMLTextAreaElement, PythonEditor>();

export function enhanceEditors(root: ParentNode = document): void {
  for (const area of root.querySelectorAll<HTMLTextAreaElement>('textarea[data-editor="python"]')) enhanceTextarea(area);
  for (const element of root.querySelectorAll<HTMLElement>("[data-diff]")) enhanceDiff(element);
}

export function editorOf(area: HTMLTextAreaElement): PythonEditor | undefined {
  return editors.get(area);
}

function enhanceTextarea(area: HTMLTextAreaElement): void {
  if (editors.has(area)) return;
  const host = document.createElement("div");
  host.className = "code-editor";
  area.after(host);
  const label = area.getAttribute("aria-label") ?? area.labels?.[0]?.textContent?.trim() ?? "Program";
  let isOwnChange = false;
  const editor = new PythonEditor({
    parent: host,
    text: area.value,
    label: `${label}. Escape, then Tab, leaves the editor.`,
    isReadOnly: area.readOnly || area.disabled,
    onChange: (text) => {
      isOwnChange = true;
      area.value = text;
      area.dispatchEvent(new Event("input", { bubbles: true }));
      isOwnChange = false;
    },
    onRun: () => area.dispatchEvent(new CustomEvent("editor:run", { bubbles: true })),
  });
  editors.set(area, editor);
  area.hidden = true;
  // A reset or a script that writes the textarea shows in the editor too.
  area.addEventListener("input", () => {
    if (!isOwnChange) editor.setText(area.value);
  });
  area.form?.addEventListener("reset", () => setTimeout(() => editor.setText(area.value)));
  area.addEventListener("focus", () => editor.focus());
  area.addEventListener("editor:diagnostics", (event) => editor.setDiagnostics((event as CustomEvent<LineDiagnostic[]>).detail));
}

function enhanceDiff(element: HTMLElement): void {
  if (element.dataset.diff === "shown") return;
  const [before, after] = [...element.querySelectorAll("pre")].map((pre) => pre.textContent ?? "");
  if (before === undefined || after === undefined) return;
  element.dataset.diff = "shown";
  const host = document.createElement("div");
  host.className = "code-diff";
  for (const child of [...element.children] as HTMLElement[]) child.hidden = true;
  element.append(host);
  showDiff(host, before, after, element.getAttribute("aria-label") ?? "Changes");
}
