// The problem page: keys, panes, tabs on narrow screens, autosave. Everything else is HTML from the server.

import { DraftSaver } from "./draft_saving.ts";
import { enableSplitter } from "./pane_sizes.ts";

type Pane = "panel" | "code" | "result";

export function enableProblemPage(): void {
  const panes = document.querySelector<HTMLElement>("#panes");
  if (!panes) return;
  enableSplitters(panes);
  enableNarrowTabs();
  const form = document.querySelector<HTMLFormElement>("#editor-form");
  const area = document.querySelector<HTMLTextAreaElement>("#source");
  const status = document.querySelector<HTMLElement>("#draft-status");
  const revision = document.querySelector<HTMLElement>("#draft-revision");
  const notice = document.querySelector<HTMLElement>("#draft-conflict");
  if (!form || !area || !status || !revision || !notice) return;
  const conflict = { show: () => void (notice.hidden = false), hide: () => void (notice.hidden = true) };
  const saver = new DraftSaver(form.dataset.draftUrl ?? "", area, status, revision, conflict);
  document.querySelector("#conflict-keep")?.addEventListener("click", () => saver.keepMine());
  document.querySelector("#conflict-reload")?.addEventListener("click", () => {
    saver.forgetMine();
    location.reload();
  });
  enableReplacements(saver, status);
  enableKeys();
  enableDiagnostics(area);
  enableErrors();
  document.addEventListener("htmx:after:request", (event) => {
    // A text that was refused is stored nowhere but here.
    const status = requestOf(event)?.response?.status ?? 0;
    if (isJudging(event) && status >= 200 && status < 300) saver.markSaved();
  });
}

/** Before "Reset to the starter" and "Undo" the server has the last text, and gets none after: it would be put back. */
function enableReplacements(saver: DraftSaver, status: HTMLElement): void {
  let isReady = false;
  document.addEventListener("submit", async (event) => {
    if (!replacesText(event.submitter?.getAttribute("formaction") ?? "")) return;
    if (isReady) {
      isReady = false;
      return;
    }
    event.preventDefault();
    const { target, submitter } = event;
    isReady = await saver.stop();
    // Not before this event has ended: during it, a browser ignores another submission.
    if (isReady) setTimeout(() => (target as HTMLFormElement).requestSubmit(submitter));
    else status.textContent = "The server does not answer, so your text was not replaced";
  });
}

function replacesText(action: string): boolean {
  return /\/(reset|restore)$/.test(action);
}

interface HtmxRequest {
  sourceElement?: Element;
  target?: Element | string;
  response?: { status: number };
}

function requestOf(event: Event): HtmxRequest | undefined {
  return (event as CustomEvent<{ ctx?: HtmxRequest }>).detail?.ctx;
}

/** Whether a request of htmx is a run or a submission. */
function isJudging(event: Event): boolean {
  const source = requestOf(event)?.sourceElement;
  return source?.id === "run" || source?.id === "submit";
}

/** Says that the server does not answer; what it answers, it says itself. */
function enableErrors(): void {
  const place = (event: Event) => document.querySelector(isJudging(event) ? "#result-error" : "#panel-error");
  document.addEventListener("htmx:before:request", (event) => {
    if (requestOf(event)?.sourceElement?.closest("#panes")) place(event)?.replaceChildren();
  });
  document.addEventListener("htmx:error", (event) => {
    if (!requestOf(event)?.sourceElement?.closest("#panel, #editor-form")) return;
    const message = document.createElement("div");
    const title = document.createElement("strong");
    message.className = "message bad";
    title.textContent = "The server does not answer.";
    const text = isJudging(event) ? " Your text is still in the editor." : "";
    message.append(title, `${text} Try: check that shardlab serve runs, then press the button again.`);
    place(event)?.replaceChildren(message);
  });
}

function enableSplitters(panes: HTMLElement): void {
  const columns = document.querySelector<HTMLElement>("#splitter-columns");
  const rows = document.querySelector<HTMLElement>("#splitter-rows");
  const work = document.querySelector<HTMLElement>(".pane-work");
  if (columns) enableSplitter({ splitter: columns, container: panes, variables: ["--left", "--right"], storageKey: "practice columns" });
  if (rows && work) enableSplitter({ splitter: rows, container: work, variables: ["--top", "--bottom"], storageKey: "practice rows" });
}

/** Marks the lines that a verdict names in the editor, until the text changes. */
function enableDiagnostics(area: HTMLTextAreaElement): void {
  let judgedText = area.value;
  const show = () => {
    const lines = [...document.querySelectorAll<HTMLElement>("#result [data-line]")];
    const detail = area.value === judgedText ? lines.map(lineDiagnostic) : [];
    area.dispatchEvent(new CustomEvent("editor:diagnostics", { detail }));
  };
  document.addEventListener("htmx:before:request", (event) => {
    if (isJudging(event)) judgedText = area.value;
  });
  document.addEventListener("htmx:after:swap", show);
  area.addEventListener("input", show);
  // The first result is of the text that the page came with, unless the person had changed it since.
  if (/^As in submission/.test(document.querySelector("#draft-status")?.textContent ?? "")) requestAnimationFrame(show);
}

function lineDiagnostic(element: HTMLElement): { line: number; severity: "error"; message: string } {
  return { line: Number(element.dataset.line), severity: "error", message: element.dataset.message ?? "" };
}

function enableKeys(): void {
  const press = (id: string) => document.querySelector<HTMLButtonElement>(id)?.click();
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      // Before the editor, which has its own Ctrl-Enter: the page decides between run and submit.
      event.preventDefault();
      event.stopPropagation();
      press(event.shiftKey ? "#submit" : "#run");
    },
    { capture: true },
  );
}

function enableNarrowTabs(): void {
  const tabs = [...document.querySelectorAll<HTMLAnchorElement>("#narrow-tabs a")];
  const show = (pane: Pane) => {
    for (const tab of tabs) {
      if (tab.dataset.tab === pane) tab.setAttribute("aria-current", "true");
      else tab.removeAttribute("aria-current");
    }
    for (const element of document.querySelectorAll<HTMLElement>("[data-pane]")) {
      element.classList.toggle("is-shown", element.dataset.pane === pane);
    }
  };
  let current: Pane = "panel";
  const select = (pane: Pane) => show((current = pane));
  for (const tab of tabs) {
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      select(tab.dataset.tab as Pane);
    });
  }
  const fromAddress = location.hash.slice(1);
  select(fromAddress === "code" || fromAddress === "result" ? fromAddress : "panel");
  // A new result takes the place of the old element: show it, and keep the others as they are.
  document.addEventListener("htmx:after:swap", () => show(current));
  document.addEventListener("htmx:before:request", (event) => {
    if (isJudging(event)) select("result");
  });
}
