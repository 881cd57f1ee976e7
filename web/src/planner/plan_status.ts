// Which settings the plan on the page belongs to: while another one is computed it is that of earlier settings.

import type { PlanFields } from "./plan_fields.ts";
import type { RequestError } from "./plan_requests.ts";
import type { PlanView, UploadedModel } from "./plan_view.ts";

export interface PlanSettings {
  readonly fields: PlanFields;
  readonly upload: UploadedModel | null;
}

/** A plan with the settings that it was computed for. */
export interface ShownPlan extends PlanSettings {
  readonly plan: PlanView;
}

export interface PlanFailure extends PlanSettings {
  readonly problem: RequestError;
}

export interface Pin {
  readonly fields: PlanFields;
  readonly plan: PlanView;
}

export interface PlanStatus {
  readonly plan: PlanView | null;
  /** The plan of the settings in the fields, which can be pinned; null while it is computed or if it failed. */
  readonly planned: Pin | null;
  /** The error of the last request; it stays until the next one has ended. */
  readonly problem: RequestError | null;
  readonly isBusy: boolean;
}

export function planStatus(now: PlanSettings, shown: ShownPlan | null, failure: PlanFailure | null): PlanStatus {
  // Every change makes new fields, so these are the same object or the plan is of other settings.
  const isOfNow = (settings: PlanSettings | null) => settings?.fields === now.fields && settings.upload === now.upload;
  const planned = shown !== null && failure === null && isOfNow(shown) ? { fields: shown.fields, plan: shown.plan } : null;
  return { plan: shown?.plan ?? null, planned, problem: failure?.problem ?? null, isBusy: planned === null && !isOfNow(failure) };
}
