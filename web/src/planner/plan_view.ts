// What the planner's API returns: the models of src/shardlab/server/api/plan_models.py.

export interface RowView {
  readonly path: string;
  readonly numbers: string;
  readonly n_tensors: number;
  readonly array_type: string;
  readonly spec: string;
  readonly mesh_axes: readonly string[];
  readonly shard_shape: readonly number[];
  readonly n_replicas: number;
  readonly bytes_by_kind: Readonly<Record<string, number>>;
  readonly bytes_per_device: number;
  readonly wasted_bytes: number;
  readonly rule: string;
  readonly skipped: readonly string[];
}

export interface PlanView {
  readonly model: string;
  readonly source: string;
  readonly headline: string;
  readonly fits: boolean | null;
  /** Whether no finding is an error: JAX may reject what fits. */
  readonly ok: boolean;
  readonly mesh: readonly (readonly [string, number])[];
  readonly n_devices: number;
  readonly n_parameters: number;
  readonly choices: Readonly<Record<string, string>>;
  readonly bytes_per_device: number;
  readonly kinds: readonly { kind: string; label: string; bytes_per_device: number }[];
  readonly budget: { hardware: string; hbm_bytes: number; usable_bytes: number; headroom: number } | null;
  readonly rows: readonly RowView[];
  readonly n_rows: number;
  readonly items: readonly { kind: string; name: string; bytes_per_device: number; formula: string }[];
  readonly findings: readonly {
    code: string;
    severity: "error" | "warning" | "info";
    what: string;
    where: string;
    fix: string;
    shows: readonly string[];
  }[];
  readonly rules: readonly { pattern: string; spec: string }[];
  readonly has_derived_rules: boolean;
  readonly rules_text: string;
  readonly notes: readonly string[];
}

/** What the activations of a plan are counted for: "remat full, batch 16 in microbatches of 8". */
export function planSetting(plan: PlanView): string {
  const { batch, sequence, microbatch, remat } = plan.choices;
  if (!batch || !sequence) return "no activations, because batch and sequence are not given";
  const parts = [...(remat ? [`remat ${remat}`] : []), `batch ${batch}${microbatch ? ` in microbatches of ${microbatch}` : " at once"}`];
  return parts.join(", ");
}

export interface CandidateView {
  readonly mesh: string;
  readonly strategy: string;
  readonly remat: string;
  readonly n_microbatches: number;
  readonly bytes_per_device: number;
  readonly step_seconds: number | null;
  readonly communication_seconds: number | null;
  readonly mfu: number | null;
  readonly reason: string;
  readonly loss_kind: string;
}

export interface AdviceView {
  readonly model: string;
  readonly headline: string;
  readonly hardware: string;
  readonly n_devices: number;
  readonly usable_bytes: number;
  /** Why step times alone do not order the rows; may be empty. */
  readonly order: string;
  readonly ranked: readonly CandidateView[];
  readonly n_ranked: number;
  readonly others: readonly CandidateView[];
  readonly n_others: number;
  readonly sufficient_devices: number;
  readonly notes: readonly string[];
  readonly command: string;
}

export interface PlannerChoices {
  readonly presets: readonly string[];
  readonly hardware: readonly string[];
  readonly strategies: readonly string[];
  readonly optimizers: readonly string[];
  readonly remat_policies: readonly string[];
}

export interface UploadedModel {
  readonly headers: readonly { file: string; header: string; data_bytes: number }[];
  readonly config: string | null;
}
