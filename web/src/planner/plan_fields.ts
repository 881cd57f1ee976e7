// The fields of the planner: texts in the URL, and the body of a request that they become.

import type { UploadedModel } from "./plan_view.ts";

export const FIELD_NAMES = [
  "model",
  "mesh",
  "strategy",
  "rules",
  "optimizer",
  "batch",
  "sequence",
  "microbatch",
  "remat",
  "hardware",
] as const;
export type FieldName = (typeof FIELD_NAMES)[number];
export type PlanFields = Readonly<Record<FieldName, string>>;

const NUMBERS: readonly FieldName[] = ["batch", "sequence", "microbatch"];
export const DEFAULT_FIELDS: PlanFields = {
  model: "llama3-8b",
  mesh: "fsdp=8",
  strategy: "fsdp",
  rules: "",
  optimizer: "adamw",
  batch: "16",
  sequence: "4096",
  microbatch: "",
  remat: "",
  hardware: "tpu-v5p",
};
const MAX_FIELD = 8000;

/** Reads fields from a query; a query without any of them gives the defaults. */
export function readFields(query: string): PlanFields {
  const parameters = new URLSearchParams(query);
  if (!FIELD_NAMES.some((name) => parameters.has(name))) return DEFAULT_FIELDS;
  const entries = FIELD_NAMES.map((name) => [name, (parameters.get(name) ?? "").slice(0, MAX_FIELD)]);
  return Object.fromEntries(entries) as PlanFields;
}

/** The query of the fields that are set. */
export function writeFields(fields: PlanFields): string {
  return FIELD_NAMES.filter((name) => fields[name] !== "")
    .map((name) => `${name}=${encodeReadably(fields[name])}`)
    .join("&");
}

export function encodeReadably(text: string): string {
  return encodeURIComponent(text).replace(/%2C|%3D|%3A/g, decodeURIComponent);
}

/** The body of POST /api/v1/plans: empty fields are left out, rules replace the strategy. */
export function planBody(fields: PlanFields, upload: UploadedModel | null): Record<string, unknown> {
  const body: Record<string, unknown> = { mesh: fields.mesh };
  for (const name of FIELD_NAMES) {
    const text = fields[name].trim();
    if (text === "" || name === "mesh") continue;
    const digits = text.replaceAll(/[,_ ]/g, "");
    body[name] = NUMBERS.includes(name) && /^\d+$/.test(digits) ? Number(digits) : text;
  }
  if (body.rules) delete body.strategy;
  if (upload) {
    delete body.model;
    body.upload = upload;
  }
  return body;
}

/** The body of POST /api/v1/advice for a number of devices. */
export function adviceBody(fields: PlanFields, upload: UploadedModel | null, devices: number): Record<string, unknown> {
  const { mesh: _mesh, strategy: _strategy, rules: _rules, remat: _remat, ...rest } = planBody(fields, upload);
  return { ...rest, devices };
}
