// The server's JSON routes that the lab uses.

import type { Recording } from "../shared/recording.ts";

export interface GalleryEntry {
  slug: string;
  title: string;
  summary: string;
  kind: "pattern" | "hazard";
  source: string;
  mesh: string;
  target: string | null;
}

export interface Job {
  id: string | number;
  kind?: string;
  state: "queued" | "running" | "done" | "failed" | "cancelled";
  /** In the queue; 1 is next. */
  position: number | null;
  /** Whether the workers still start. */
  is_starting?: boolean;
  progress: Record<string, unknown> | null;
  result?: Record<string, unknown> | null;
  result_url: string | null;
  error: unknown;
}

export interface ProgramEdit {
  id: string;
  kind: string;
  line: number;
  label: string;
  description: string;
}

export interface RecordingRequest {
  source: string;
  target?: string | null;
  mesh: string;
  hardware?: string | null;
  edit?: string | null;
}

/** A fault in the server's words: what, where, and a fix. */
export class ApiError extends Error {
  /** Whether the person has too many jobs or requests at once: later it works. */
  isTooMany = false;

  constructor(message: string, readonly where: string, readonly fix: string, readonly line: number) {
    super(message);
  }
}

function csrfToken(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
}

async function request(path: string, body?: unknown): Promise<unknown> {
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
      headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json", "x-csrf-token": csrfToken() }) },
    });
    text = await response.text();
  } catch {
    // The browser's own sentence, such as "Failed to fetch", does not say what failed.
    throw new ApiError("The server does not answer. Your program is still in the editor.", "", "check that shardlab serve runs, then try again.", 0);
  }
  let parsed: unknown = null;
  try {
    parsed = text ? JSON.parse(text) : null;
  } catch {
    // A proxy or a crash answers with something else than JSON; the status says enough.
  }
  if (!response.ok) {
    const error = errorFrom(parsed, `The server answered with status ${response.status}.`);
    error.isTooMany = response.status === 429;
    throw error;
  }
  return parsed;
}

/** Our error objects have code, message, where and fix; FastAPI's own have detail. */
export function errorFrom(body: unknown, fallback: string): ApiError {
  if (typeof body === "string" && body) return new ApiError(body, "", "", 0);
  const outer = (body ?? {}) as Record<string, unknown>;
  const inner = (typeof outer.error === "object" && outer.error !== null ? outer.error : outer) as Record<string, unknown>;
  const text = (...names: string[]) => names.map((name) => inner[name]).find((field) => typeof field === "string" && field) as string | undefined;
  const detail = Array.isArray(inner.detail) ? inner.detail.map((item: { msg?: string }) => item.msg).join("; ") : undefined;
  const line = typeof inner.line === "number" ? inner.line : 0;
  return new ApiError(text("message", "detail", "error") ?? detail ?? (typeof outer.error === "string" ? outer.error : fallback), text("where") ?? "", text("fix") ?? "", line);
}

export async function fetchGallery(): Promise<GalleryEntry[]> {
  return (await request("/api/v1/gallery")) as GalleryEntry[];
}

export async function fetchRecording(id: string): Promise<Recording> {
  return (await request(`/api/v1/recordings/${encodeURIComponent(id)}`)) as Recording;
}

/** The edits of "Break it". Finding them parses the program, so it is a job of a worker too. */
export async function fetchEdits(source: string, mesh: string): Promise<ProgramEdit[]> {
  const job = await followJob((await request("/api/v1/edits", { source, mesh })) as Job, () => undefined);
  if (job.state === "failed") throw errorFrom(job.error, "The program's edits could not be listed.");
  return (job.result?.edits ?? []) as ProgramEdit[];
}

export async function startRecording(body: RecordingRequest): Promise<Job> {
  return (await request("/api/v1/recordings", body)) as Job;
}

/** Resolve with the job once it has ended. `onSilence` is called while the server does not answer. */
export function followJob(job: Job, onUpdate: (job: Job) => void, onSilence: () => void = () => undefined): Promise<Job> {
  return new Promise((resolve) => {
    const update = (newer: Job) => {
      onUpdate(newer);
      if (hasEnded(newer)) resolve(newer);
    };
    if (hasEnded(job)) resolve(job);
    else watchJob(job.id, update, onSilence);
  });
}

function hasEnded(job: Job): boolean {
  return ["done", "failed", "cancelled"].includes(job.state);
}

export async function cancelJob(id: Job["id"]): Promise<void> {
  await request(`/api/v1/jobs/${id}/cancel`, {});
}

/** Follow a job to its end. Server-sent events; if the stream breaks, one request per second. */
function watchJob(id: Job["id"], onUpdate: (job: Job) => void, onSilence: () => void): () => void {
  const events = new EventSource(`/api/v1/jobs/${id}/events`);
  let isClosed = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const close = () => {
    isClosed = true;
    events.close();
    clearTimeout(timer);
  };
  const update = (job: Job) => {
    if (isClosed) return;
    if (hasEnded(job)) close();
    onUpdate(job);
  };
  const poll = async () => {
    if (isClosed) return;
    try {
      update((await request(`/api/v1/jobs/${id}`)) as Job);
    } catch {
      // The server may be restarting; jobs are durable, so ask again.
      if (!isClosed) onSilence();
    }
    if (!isClosed) timer = setTimeout(poll, 1000);
  };
  const read = (event: MessageEvent<string>) => update(JSON.parse(event.data) as Job);
  events.addEventListener("job", (event) => read(event as MessageEvent<string>));
  events.onerror = () => {
    if (isClosed) return;
    events.close();
    timer = setTimeout(poll, 300);
  };
  return close;
}

const RECORDING_FIX = "choose a file that shardlab run --record or the menu Share and export wrote.";

/** Read a recording from a file, also a compressed one. */
export async function readRecordingFile(file: File): Promise<Recording> {
  const isCompressed = file.name.endsWith(".gz");
  let recording: Recording | null;
  try {
    const stream = isCompressed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
    recording = JSON.parse(await new Response(stream).text()) as Recording | null;
  } catch {
    throw new ApiError(`${file.name} cannot be read: it is damaged, or it is not ${isCompressed ? "a compressed recording" : "JSON"}.`, "", RECORDING_FIX, 0);
  }
  if (recording?.format !== "shardlab-recording") throw new ApiError(`${file.name} is not a recording of shardlab.`, "", RECORDING_FIX, 0);
  if (recording.version !== 1 && recording.version !== 2) throw new ApiError(`${file.name} has format version ${(recording as { version: unknown }).version}; this page reads versions 1 and 2.`, "", RECORDING_FIX, 0);
  return recording;
}

/** Read a program from a file; anything but text is not put into the editor. */
export async function readProgramFile(file: File): Promise<string> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // Not UTF-8: the same sentence.
  }
  throw new ApiError(`${file.name} is not a text file.`, "", "open a Python program (.py) or a recording (.json, .json.gz).", 0);
}
