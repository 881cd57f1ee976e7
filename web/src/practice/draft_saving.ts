// Saves the text of the editor while it is typed: on the server, and in this browser until the server has it.

const SAVE_DELAY_MS = 800;
const RETRY_DELAY_MS = 5000;

export interface LocalDraft {
  source: string;
  /** The text that the server had sent when this one was typed. */
  base: string;
}

/** A text that was typed and never reached the server; null if the server has it or has moved on. */
export function unsavedText(stored: string | null, serverText: string): string | null {
  if (stored === null) return null;
  try {
    const draft = JSON.parse(stored) as LocalDraft;
    // Another base: the server's text is newer, such as a submission from the terminal.
    return draft.base === serverText && draft.source !== serverText ? draft.source : null;
  } catch {
    return null;
  }
}

/** What a tab does when another one has changed the text that both have open. */
export interface ConflictNotice {
  show(): void;
  hide(): void;
}

export class DraftSaver {
  private timer: number | undefined;
  /** What the server has; null if it must get the text in any case. */
  private savedText: string | null;
  private hasConflict = false;
  /** The save that is under way. */
  private saving: Promise<void> | null = null;
  /** Whether the server is about to replace the text: a save would put it back. */
  private isStopped = false;
  private readonly storageKey: string;

  constructor(
    /** Where the draft is stored; another one for the same problem of another catalogue. */
    private readonly url: string,
    private readonly area: HTMLTextAreaElement,
    private readonly status: HTMLElement,
    /** The element with the revision of the text that the server has; a submission replaces its content. */
    private readonly revision: HTMLElement,
    private readonly notice: ConflictNotice,
  ) {
    this.storageKey = `draft ${url}`;
    this.savedText = area.value;
    const unsaved = unsavedText(localStorage.getItem(this.storageKey), area.value);
    if (unsaved !== null) {
      area.value = unsaved;
      area.dispatchEvent(new Event("input", { bubbles: true }));
      this.schedule(0);
    }
    area.addEventListener("input", () => this.onInput());
    addEventListener("pagehide", () => void this.flush(true));
    // A page that comes back from the browser's cache is edited on; its revision says whether the server has moved on.
    addEventListener("pageshow", () => (this.isStopped = false));
  }

  /** The text was stored in another way, such as by a submission. */
  markSaved(): void {
    clearTimeout(this.timer);
    this.savedText = this.area.value;
    localStorage.removeItem(this.storageKey);
    this.hasConflict = false; // the submission is the newest text, and the other one is still in the draft
    this.notice.hide();
    this.status.textContent = "As submitted";
  }

  /** Saves this text over that of the other tab. */
  keepMine(): void {
    this.hasConflict = false;
    this.revision.textContent = "";
    this.notice.hide();
    this.savedText = null;
    this.schedule(0);
  }

  /** The text of the other tab takes the place of this one. */
  forgetMine(): void {
    clearTimeout(this.timer);
    this.savedText = this.area.value;
    localStorage.removeItem(this.storageKey);
  }

  /**
   * Before the server replaces the text: it gets this one first, and nothing after that. Returns false if the server does
   * not answer; then this browser alone has the text, and nothing must replace it.
   */
  async stop(): Promise<boolean> {
    while (this.saving !== null) await this.saving;
    await this.flush();
    if (this.area.value !== this.savedText && !this.hasConflict) return false;
    clearTimeout(this.timer);
    localStorage.removeItem(this.storageKey);
    this.isStopped = true;
    return true;
  }

  private onInput(): void {
    if (this.isStopped) return;
    const draft: LocalDraft = { source: this.area.value, base: this.savedText ?? "" };
    localStorage.setItem(this.storageKey, JSON.stringify(draft));
    this.status.textContent = "Not saved yet";
    this.schedule(SAVE_DELAY_MS);
  }

  private schedule(delay: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.flush(), delay) as unknown as number;
  }

  private async flush(isLeaving = false): Promise<void> {
    clearTimeout(this.timer);
    // Two at a time would both name the revision from before: the second one would look like another tab's.
    if (this.saving !== null && !isLeaving) return this.schedule(SAVE_DELAY_MS);
    const text = this.area.value;
    if (this.isStopped || text === this.savedText || this.hasConflict) return;
    const revision = this.saving !== null ? "" : (this.revision.textContent ?? "");
    this.saving = this.save(text, revision);
    await this.saving;
    this.saving = null;
  }

  private async save(text: string, revision: string): Promise<void> {
    try {
      const response = await fetch(this.url, {
        method: "PUT",
        // The request outlives the page that is being left.
        keepalive: text.length < 60_000,
        headers: {
          "content-type": "application/json",
          "x-csrf-token": csrfToken(),
          ...(revision && { "if-match": `"${revision}"` }),
        },
        body: JSON.stringify({ source: text }),
      });
      if (response.status === 412) {
        this.hasConflict = true;
        this.status.textContent = "Not saved";
        this.notice.show();
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      this.revision.textContent = ((await response.json()) as { revision: string }).revision;
      this.savedText = text;
      localStorage.removeItem(this.storageKey);
      if (this.area.value === text) this.status.textContent = `Draft saved ${new Date().toLocaleTimeString([], { timeStyle: "short" })}`;
    } catch {
      this.status.textContent = "Not saved on the server; this browser has it";
      this.schedule(RETRY_DELAY_MS);
    }
  }
}

export function csrfToken(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
}
