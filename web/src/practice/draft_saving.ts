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

export class DraftSaver {
  private timer: number | undefined;
  private savedText: string;
  private readonly storageKey: string;

  constructor(
    private readonly slug: string,
    private readonly area: HTMLTextAreaElement,
    private readonly status: HTMLElement,
  ) {
    this.storageKey = `draft ${slug}`;
    this.savedText = area.value;
    const unsaved = unsavedText(localStorage.getItem(this.storageKey), area.value);
    if (unsaved !== null) {
      area.value = unsaved;
      area.dispatchEvent(new Event("input", { bubbles: true }));
      this.schedule(0);
    }
    area.addEventListener("input", () => this.onInput());
    addEventListener("pagehide", () => void this.flush());
  }

  /** The text was stored in another way, such as by a submission. */
  markSaved(): void {
    clearTimeout(this.timer);
    this.savedText = this.area.value;
    localStorage.removeItem(this.storageKey);
    this.status.textContent = "As submitted";
  }

  private onInput(): void {
    const draft: LocalDraft = { source: this.area.value, base: this.savedText };
    localStorage.setItem(this.storageKey, JSON.stringify(draft));
    this.status.textContent = "Not saved yet";
    this.schedule(SAVE_DELAY_MS);
  }

  private schedule(delay: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.flush(), delay) as unknown as number;
  }

  private async flush(): Promise<void> {
    clearTimeout(this.timer);
    const text = this.area.value;
    if (text === this.savedText) return;
    try {
      const response = await fetch(`/api/v1/practice/problems/${this.slug}/draft`, {
        method: "PUT",
        // The request outlives the page that is being left.
        keepalive: text.length < 60_000,
        headers: { "content-type": "application/json", "x-csrf-token": csrfToken() },
        body: JSON.stringify({ source: text }),
      });
      if (!response.ok) throw new Error(String(response.status));
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
