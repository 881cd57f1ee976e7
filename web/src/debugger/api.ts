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
  constructor(message: string, readonly where: string, readonly fix: string, readonly line: number) {
    super(message);
  }
}

function csrfToken(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
}

async function request(path: string, body?: unknown): Promise<unknown> {
  const response = await fetch(path, {
    ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json", "x-csrf-token": csrfToken() }) },
  });
  const text = await response.text();
  let parsed: unknown = null;
  try {
    parsed = text ? JSON.parse(text) : null;
  } catch {
    // A proxy or a crash answers with something else than JSON; the status says enough.
  }
  if (!response.ok) throw errorFrom(parsed, `The server answered with status ${response.status}.`);
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

/** Resolve with the job once it has ended. */
export function followJob(job: Job, onUpdate: (job: Job) => void): Promise<Job> {
  return new Promise((resolve) => {
    if (hasEnded(job)) resolve(job);
    else
      watchJob(job.id, (update) => {
        onUpdate(update);
        if (hasEnded(update)) resolve(update);
      });
  });
}

function hasEnded(job: Job): boolean {
  return ["done", "failed", "cancelled"].includes(job.state);
}

export async function cancelJob(id: Job["id"]): Promise<void> {
  await request(`/api/v1/jobs/${id}/cancel`, {});
}

/** Follow a job to its end. Server-sent events; if the stream breaks, one request per second. */
function watchJob(id: Job["id"], onUpdate: (job: Job) => void): () => void {
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

/** Read a recording from a file, also a compressed one. */
export async function readRecordingFile(file: File): Promise<Recording> {
  const isCompressed = file.name.endsWith(".gz");
  const stream = isCompressed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
  const text = await new Response(stream).text();
  const recording = JSON.parse(text) as Recording;
  if (recording.format !== "shardlab-recording") throw new Error(`${file.name} is not a recording of shardlab.`);
  if (recording.version !== 1) throw new Error(`${file.name} has format version ${recording.version}; this page reads version 1.`);
  return recording;
}
