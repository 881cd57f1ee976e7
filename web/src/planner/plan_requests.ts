// Requests to the planner's API, and the reading of uploaded files: only headers leave the machine.

import type { UploadedModel } from "./plan_view.ts";

export interface RequestError {
  readonly message: string;
  readonly where: string;
  readonly fix: string;
}

export class RequestFailed extends Error {
  constructor(readonly detail: RequestError) {
    super(detail.message);
  }
}

/** Posts JSON and returns the JSON of the response; raises RequestFailed with the words of the server. */
export async function postJson<T>(url: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const token = document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
  return readResponse<T>(
    await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": token },
      body: JSON.stringify(body),
      ...(signal && { signal }),
    }),
  );
}

export async function getJson<T>(url: string, signal?: AbortSignal): Promise<T> {
  return readResponse<T>(await fetch(url, signal ? { signal } : {}));
}

async function readResponse<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { message: string; where?: string; fix?: string } };
    throw new RequestFailed({ message: error.message, where: error.where ?? "", fix: error.fix ?? "" });
  } catch (failure) {
    if (failure instanceof RequestFailed) throw failure;
    throw new RequestFailed({ message: text.slice(0, 200) || `Error ${response.status}.`, where: "", fix: "" });
  }
}

const MAX_HEADER_BYTES = 3 * 2 ** 20;
const MAX_CONFIG_BYTES = 200_000;

/** Reads the headers of safetensors files and a config.json; the weights are not read. */
export async function readModelFiles(files: readonly File[]): Promise<UploadedModel> {
  const headers: UploadedModel["headers"][number][] = [];
  let config: string | null = null;
  let total = 0;
  for (const file of files) {
    if (file.name.toLowerCase().endsWith(".json")) {
      if (file.size > MAX_CONFIG_BYTES) throw refused(`${file.name} is larger than 200 kB.`, "the config.json of a model.");
      config = await file.text();
      continue;
    }
    const header = await readHeader(file);
    total += header.header.length;
    if (total > MAX_HEADER_BYTES) {
      throw refused("The headers have more than 3 MB.", "shardlab plan FOLDER on the command line reads headers of any size.");
    }
    headers.push(header);
  }
  return { headers, config };
}

async function readHeader(file: File): Promise<UploadedModel["headers"][number]> {
  const prefix = await file.slice(0, 8).arrayBuffer();
  // The first 8 bytes are the length of the header, little-endian.
  const length = prefix.byteLength === 8 ? Number(new DataView(prefix).getBigUint64(0, true)) : 0;
  if (length < 2 || length > Math.min(MAX_HEADER_BYTES, file.size - 8)) {
    throw refused(`${file.name} is not a safetensors file, or its header is too large.`, "a .safetensors file, or a config.json.");
  }
  const header = await file.slice(8, 8 + length).text();
  return { file: file.name.slice(0, 200), header, data_bytes: file.size - 8 - length };
}

function refused(message: string, fix: string): RequestFailed {
  return new RequestFailed({ message, where: "", fix });
}
