// The planner: what each device stores of a model, whether it fits, and how two plans differ.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { MeshControls } from "../explorer/controls.tsx";
import { useDarkTheme } from "../explorer/theme.ts";
import { parseMesh, type Mesh } from "../shared/mesh.ts";
import { AdvicePanel } from "./advice_panel.tsx";
import { encodeReadably, planBody, readFields, writeFields, type FieldName, type PlanFields } from "./plan_fields.ts";
import { MemoryBars, Treemap } from "./plan_pictures.tsx";
import { planStatus, type Pin, type PlanFailure, type ShownPlan } from "./plan_status.ts";
import { RequestFailed, postJson, readModelFiles, type RequestError } from "./plan_requests.ts";
import type { PlanView, PlannerChoices, UploadedModel } from "./plan_view.ts";
import { TensorTable } from "./tensor_table.tsx";

interface Properties {
  readonly choices: PlannerChoices;
  /** The plan of the URL, computed by the server with the page; null if it is not valid. */
  readonly firstPlan: PlanView | null;
}

export function Planner({ choices, firstPlan }: Properties) {
  const [fields, setFields] = useState<PlanFields>(() => readFields(location.search));
  const [upload, setUpload] = useState<UploadedModel | null>(null);
  const [pin, setPin] = useState<Pin | null>(null);
  const [selected, setSelected] = useState<string | null>(null);
  const { plan, planned, problem, isBusy, setProblem } = usePlan(fields, upload, firstPlan);
  const dark = useDarkTheme();
  usePinnedUrl(fields, pin, setPin);

  const change = (part: Partial<PlanFields>) => setFields((old) => ({ ...old, ...part }));
  const chooseFiles = async (files: FileList | null) => {
    if (!files?.length) return;
    try {
      setUpload(await readModelFiles([...files]));
    } catch (error) {
      if (!(error instanceof RequestFailed)) throw error;
      setProblem(error.detail);
    }
  };
  return (
    <div class="explorer planner">
      <div class="stage">
        <header class="stage-head">
          <h1>Planner</h1>
          <a class="to-settings" href="#settings">
            Model, mesh and options
          </a>
          <p class="summary" aria-live="polite">
            {plan && !problem ? `${plan.model}, ${billions(plan.n_parameters)} parameters, on ${plan.n_devices.toLocaleString("en-US")} devices` : ""}
          </p>
        </header>
        {problem && <Problem problem={problem} />}
        {plan && (
          <div class="result" aria-busy={isBusy}>
            <div class="verdict-row">
              {isBusy && (
                <p class="computing" role="status">
                  Computing{"\u2026"}
                </p>
              )}
              {problem ? (
                // Not a verdict: it is not about what the fields say now.
                <p class="muted">Showing the last valid plan, of {plan.model} on {plan.n_devices.toLocaleString("en-US")} devices.</p>
              ) : (
                <p class={`verdict ${!plan.ok || plan.fits === false ? "fails" : plan.fits ? "fits" : ""}`} role="status">
                  {plan.headline}
                </p>
              )}
              {pin ? (
                <span class="pin-buttons">
                  <button type="button" class="small" onClick={() => setFields(pin.fields)}>
                    Back to the pinned plan
                  </button>
                  <button type="button" class="small" onClick={() => setPin(null)}>
                    Unpin
                  </button>
                </span>
              ) : (
                <button type="button" class="small" disabled={upload !== null || planned === null} onClick={() => planned && setPin(planned)}>
                  Pin this plan to compare
                </button>
              )}
            </div>
            {pin && <PinText pin={pin} fields={fields} />}
            <section class="panel-box" aria-label="Memory of one device">
              <MemoryBars plan={plan} pinned={pin?.plan ?? null} dark={dark} />
            </section>
            <Findings plan={plan} />
            <section class="panel-box" aria-labelledby="treemap-title">
              <h2 id="treemap-title">Tensors of one device</h2>
              <AxisLegend plan={plan} />
              <Treemap plan={plan} dark={dark} selected={selected} onSelect={setSelected} />
              <TensorTable plan={plan} pinned={pin?.plan ?? null} selected={selected} onSelect={setSelected} />
            </section>
            <Details plan={plan} />
          </div>
        )}
        <AdvicePanel
          fields={fields}
          upload={upload}
          plan={plan}
          onUse={(candidate) => {
            change({ mesh: candidate.mesh, strategy: candidate.strategy, rules: "", remat: candidate.remat, microbatch: microbatchOf(fields, candidate.n_microbatches) });
            // The ranking is below the plan: show what has changed.
            document.querySelector(".stage-head")?.scrollIntoView({ block: "start" });
          }}
        />
      </div>
      <aside class="inspector" id="settings" aria-label="Model, mesh and options">
        <ModelField fields={fields} choices={choices} upload={upload} onChange={change} onFiles={chooseFiles} onRemove={() => setUpload(null)} />
        <MeshField fields={fields} dark={dark} onChange={change} />
        <Select name="strategy" label="Strategy" fields={fields} options={choices.strategies} empty="none: rules, or replicated" onChange={change} />
        <details class="field rules-field" open={fields.rules !== ""}>
          <summary>Rules instead of a strategy</summary>
          <label class="visually-hidden" for="rules">
            Rules as TOML
          </label>
          <textarea id="rules" rows={7} maxLength={8000} spellcheck={false} value={fields.rules} placeholder={'[[rules]]\npath = ".*proj"\nspec = "fsdp,tensor"'} onInput={(event) => change({ rules: event.currentTarget.value })} />
          {plan && plan.has_derived_rules && (
            <button type="button" class="small" onClick={() => change({ rules: plan.rules_text, strategy: "" })}>
              Begin with the strategy's rules
            </button>
          )}
        </details>
        <div class="field-pair">
          <Select name="optimizer" label="Optimizer" fields={fields} options={choices.optimizers} onChange={change} />
          <Select name="remat" label="Remat" fields={fields} options={choices.remat_policies} empty="default" onChange={change} />
        </div>
        <div class="field-pair">
          <NumberField name="batch" label="Batch" fields={fields} onChange={change} />
          <NumberField name="sequence" label="Sequence" fields={fields} onChange={change} />
        </div>
        <div class="field-pair">
          <NumberField name="microbatch" label="Microbatch" fields={fields} onChange={change} />
          <Select name="hardware" label="Chip" fields={fields} options={choices.hardware} empty="none" onChange={change} />
        </div>
      </aside>
    </div>
  );
}

function microbatchOf(fields: PlanFields, nMicrobatches: number): string {
  const batch = Number(fields.batch);
  return nMicrobatches > 1 && batch % nMicrobatches === 0 ? `${batch / nMicrobatches}` : "";
}

function billions(count: number): string {
  return count >= 1e9 ? `${(count / 1e9).toFixed(1)} billion` : `${(count / 1e6).toFixed(1)} million`;
}

interface FieldProperties {
  readonly fields: PlanFields;
  readonly onChange: (part: Partial<PlanFields>) => void;
}

interface ModelFieldProperties extends FieldProperties {
  readonly choices: PlannerChoices;
  readonly upload: UploadedModel | null;
  readonly onFiles: (files: FileList | null) => void;
  readonly onRemove: () => void;
}

function ModelField({ fields, choices, upload, onChange, onFiles, onRemove }: ModelFieldProperties) {
  const names = [...(upload?.headers ?? []).map((header) => header.file), ...(upload?.config ? ["config.json"] : [])];
  return (
    <div class="field">
      {upload ? (
        <p class="uploaded">
          <strong>{names[0]}</strong> {names.length > 1 && `and ${names.length - 1} more `}
          <button type="button" class="small" onClick={onRemove}>
            Use a preset instead
          </button>
          <span class="field-help">{upload.headers.length > 0 ? "Only the header was sent." : "Its sizes give the tensors."} A link to this page cannot include it.</span>
        </p>
      ) : (
        <Select name="model" label="Model" fields={fields} options={choices.presets} onChange={onChange} />
      )}
      <label class="file-label" for="files">
        {upload ? "Other files" : "Or your own: .safetensors, config.json"}
      </label>
      <input id="files" type="file" multiple accept=".safetensors,.json" onChange={(event) => onFiles(event.currentTarget.files)} />
    </div>
  );
}

function MeshField({ fields, dark, onChange }: FieldProperties & { dark: boolean }) {
  const mesh = useMemo(() => readMesh(fields.mesh), [fields.mesh]);
  return (
    <div class="field">
      <label for="mesh">Mesh</label>
      <input id="mesh" class="code" type="text" value={fields.mesh} maxLength={400} autocomplete="off" spellcheck={false} aria-describedby="mesh-help" onInput={(event) => onChange({ mesh: event.currentTarget.value })} />
      <span id="mesh-help" class="field-help">
        Such as fsdp=64,tensor=8, or a TPU slice: v5p-1024.
      </span>
      {mesh && <MeshControls mesh={mesh} dark={dark} onChange={(text) => onChange({ mesh: text })} />}
    </div>
  );
}

/** The mesh of a text; null for texts that only the planner reads, such as v5p-1024. */
function readMesh(text: string): Mesh | null {
  try {
    return parseMesh(text);
  } catch {
    return null;
  }
}

interface SelectProperties extends FieldProperties {
  readonly name: FieldName;
  readonly label: string;
  readonly options: readonly string[];
  readonly empty?: string;
}

function Select({ name, label, fields, options, empty, onChange }: SelectProperties) {
  const value = fields[name];
  const known = value === "" || options.includes(value) ? options : [value, ...options];
  return (
    <div class="field">
      <label for={name}>{label}</label>
      <select id={name} value={value} onChange={(event) => onChange({ [name]: event.currentTarget.value })}>
        {(empty !== undefined || value === "") && <option value="">{empty ?? ""}</option>}
        {known.map((option) => (
          <option key={option} value={option}>
            {option}
          </option>
        ))}
      </select>
    </div>
  );
}

function NumberField({ name, label, fields, onChange }: FieldProperties & { name: FieldName; label: string }) {
  return (
    <div class="field">
      <label for={name}>{label}</label>
      <input id={name} inputMode="numeric" value={fields[name]} autocomplete="off" onInput={(event) => onChange({ [name]: event.currentTarget.value })} />
    </div>
  );
}

function Problem({ problem }: { problem: RequestError }) {
  const lines = problem.where.split("\n");
  return (
    <div class="message bad" role="alert">
      <p>
        <strong>{problem.message}</strong>
      </p>
      {lines.length > 1 ? <pre>{lines.slice(1).map((line) => line.slice(9)).join("\n")}</pre> : problem.where && <p class="muted">{problem.where}</p>}
      {problem.fix && <p>Try: {problem.fix}</p>}
    </div>
  );
}

function PinText({ pin, fields }: { pin: Pin; fields: PlanFields }) {
  const changes = (Object.keys(fields) as FieldName[]).filter((name) => fields[name] !== pin.fields[name]);
  return (
    <p class="pin-text">
      {changes.length === 0
        ? "Pinned. Change the mesh, the strategy or another option to compare."
        : changes.map((name) => (
            <span class="change" key={name}>
              {name}: <del>{shortText(pin.fields[name])}</del> <ins>{shortText(fields[name])}</ins>
            </span>
          ))}
    </p>
  );
}

function shortText(text: string): string {
  if (text === "") return "none";
  return text.length > 40 ? `${text.slice(0, 40)} …` : text;
}

function Findings({ plan }: { plan: PlanView }) {
  if (plan.findings.length === 0) return <p class="no-findings muted">No findings.</p>;
  const badges = { error: "bad", warning: "warn", info: "" } as const;
  return (
    <section class="findings-box" aria-labelledby="findings-title">
      <h2 id="findings-title">Findings</h2>
      <ul class="findings">
        {plan.findings.map((finding, index) => (
          <li key={index}>
            <p>
              <span class={`badge ${badges[finding.severity]}`}>{finding.severity}</span> {finding.what}
            </p>
            {finding.shows.length > 0 && <pre>{finding.shows.join("\n")}</pre>}
            {finding.fix && <p class="muted">Try: {finding.fix}</p>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function AxisLegend({ plan }: { plan: PlanView }) {
  return (
    <p class="legend muted">
      {plan.mesh.map(([name, size], axis) => (
        <span key={name} class="legend-axis">
          <span class={`swatch axis-swatch-${axis % 8}`} /> {name} {size}
        </span>
      ))}
      <span class="legend-axis">
        <span class="legend-hatch texture-replica" /> replicated
      </span>
      <span>Areas: parameters, gradients and optimizer states together.</span>
    </p>
  );
}

function Details({ plan }: { plan: PlanView }) {
  return (
    <div class="plan-details">
      {plan.items.length > 0 && (
        <details>
          <summary>Activations, caches and counters, with their formulas</summary>
          <ul class="items">
            {plan.items.map((item) => (
              <li key={item.name}>
                <strong>{item.name}</strong>: {(item.bytes_per_device / 1e9).toFixed(2)} GB <span class="muted">{item.formula}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
      {plan.rules_text && (
        <details>
          <summary>{plan.has_derived_rules ? "The strategy as rules" : "Rules"}</summary>
          <pre tabIndex={0}>{plan.rules_text}</pre>
        </details>
      )}
      {plan.notes.map((note) => (
        <p class="muted note" key={note}>
          {note}
        </p>
      ))}
      <p class="muted note">{plan.source}</p>
    </div>
  );
}

/** Plans again whenever a field changes; while it is computed, and if it fails, the last plan stays. */
function usePlan(fields: PlanFields, upload: UploadedModel | null, firstPlan: PlanView | null) {
  const [shown, setShown] = useState<ShownPlan | null>(() => firstPlan && { plan: firstPlan, fields, upload });
  const [failure, setFailure] = useState<PlanFailure | null>(null);
  const isFirst = useRef(firstPlan !== null);
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false;
      return;
    }
    const abort = new AbortController();
    const fail = (problem: RequestError) => setFailure({ problem, fields, upload });
    const timer = setTimeout(async () => {
      try {
        const plan = await postJson<PlanView>("/api/v1/plans", planBody(fields, upload), abort.signal);
        if (abort.signal.aborted) return;
        setShown({ plan, fields, upload });
        setFailure(null);
      } catch (error) {
        if (abort.signal.aborted) return;
        fail(error instanceof RequestFailed ? error.detail : { message: "The server does not answer.", where: "", fix: "is it still running?" });
      }
    }, 60);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [fields, upload]);
  return { ...planStatus({ fields, upload }, shown, failure), setProblem: (problem: RequestError) => setFailure({ problem, fields, upload }) };
}

/** The URL has the fields, and those of the pinned plan as one parameter. */
function usePinnedUrl(fields: PlanFields, pin: Pin | null, setPin: (pin: Pin | null) => void): void {
  const [isRead, setRead] = useState(false);
  useEffect(() => {
    const pinned = new URLSearchParams(location.search).get("pin");
    if (!pinned) {
      setRead(true);
      return;
    }
    const pinnedFields = readFields(pinned);
    postJson<PlanView>("/api/v1/plans", planBody(pinnedFields, null))
      .then((plan) => setPin({ fields: pinnedFields, plan }))
      .catch(() => setPin(null))
      .finally(() => setRead(true));
  }, []);
  useEffect(() => {
    if (!isRead) return;
    const timer = setTimeout(() => {
      const suffix = pin ? `&pin=${encodeReadably(writeFields(pin.fields)).replaceAll("=", "%3D")}` : "";
      history.replaceState(null, "", `?${writeFields(fields)}${suffix}`);
    }, 150);
    return () => clearTimeout(timer);
  }, [fields, pin, isRead]);
}
