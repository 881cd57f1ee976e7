// Which mesh is fastest: a job that ranks all factorizations of a number of devices.

import { useEffect, useRef, useState } from "preact/hooks";
import { bytesText } from "../shared/units.ts";
import { adviceBody, type PlanFields } from "./plan_fields.ts";
import { RequestFailed, postJson, type RequestError } from "./plan_requests.ts";
import { planSetting, type AdviceView, type CandidateView, type PlanView, type UploadedModel } from "./plan_view.ts";

interface JobView {
  readonly id: string;
  readonly state: "queued" | "running" | "done" | "failed" | "cancelled";
  readonly position: number | null;
  readonly is_starting?: boolean;
  readonly result: AdviceView | null;
  readonly error: { message: string; fix: string } | null;
  readonly events_url: string;
}

interface Properties {
  readonly fields: PlanFields;
  readonly upload: UploadedModel | null;
  readonly plan: PlanView | null;
  readonly onUse: (candidate: CandidateView) => void;
}

export function AdvicePanel({ fields, upload, plan, onUse }: Properties) {
  const nDevices = plan?.n_devices ?? 8;
  const [devices, setDevices] = useState("");
  const [status, setStatus] = useState("");
  const [problem, setProblem] = useState<RequestError | null>(null);
  const [advice, setAdvice] = useState<AdviceView | null>(null);
  const events = useRef<EventSource | null>(null);
  useEffect(() => () => events.current?.close(), []);

  const follow = (job: JobView) => {
    if (job.state === "queued") setStatus(job.is_starting ? "The workers are starting." : `Waiting: number ${job.position ?? 1} in the queue.`);
    if (job.state === "running") setStatus("Trying every mesh and strategy.");
    if (job.state === "queued" || job.state === "running") return;
    events.current?.close();
    events.current = null;
    setStatus("");
    if (job.state === "done") setAdvice(job.result);
    else setProblem({ message: job.error?.message ?? "The job was cancelled.", where: "", fix: job.error?.fix ?? "" });
  };
  const start = async (event: Event) => {
    event.preventDefault();
    setProblem(null);
    setAdvice(null);
    setStatus("Sending.");
    try {
      const count = Number(devices || nDevices);
      const job = await postJson<JobView>("/api/v1/advice", adviceBody(fields, upload, count));
      follow(job);
      if (job.state === "queued" || job.state === "running") {
        events.current?.close();
        events.current = new EventSource(job.events_url);
        events.current.addEventListener("job", (message) => follow(JSON.parse((message as MessageEvent<string>).data) as JobView));
      }
    } catch (error) {
      setStatus("");
      if (!(error instanceof RequestFailed)) throw error;
      setProblem(error.detail);
    }
  };
  return (
    <section class="advice" aria-labelledby="advice-title">
      <h2 id="advice-title">Which mesh is fastest?</h2>
      <form class="advice-form" onSubmit={start}>
        <label for="advice-devices">Devices</label>
        <input id="advice-devices" inputMode="numeric" pattern="[0-9]+" value={devices || `${nDevices}`} onInput={(event) => setDevices(event.currentTarget.value)} />
        <button disabled={status !== "" || !fields.hardware}>Rank meshes and strategies</button>
        <span class="muted" role="status">
          {fields.hardware ? status : "Choose a chip first."}
        </span>
      </form>
      {problem && (
        <div class="message bad" role="alert">
          <p>{problem.message}</p>
          {problem.fix && <p>Try: {problem.fix}</p>}
        </div>
      )}
      {advice && <Ranking advice={advice} plan={plan} onUse={onUse} />}
    </section>
  );
}

function Ranking({ advice, plan, onUse }: { advice: AdviceView; plan: PlanView | null; onUse: Properties["onUse"] }) {
  const slowest = Math.max(...advice.ranked.map((candidate) => candidate.step_seconds ?? 0)) || 1;
  return (
    <div>
      <p class={`message ${advice.ranked.length ? "good" : "bad"}`}>{advice.headline}</p>
      {advice.ranked.length > 1 && advice.order !== "" && <p class="muted note ranking-order">Order: {advice.order}.</p>}
      {advice.ranked.length > 0 && (
        <div class="table-scroll" tabIndex={0} role="region" aria-label="Ranking">
          <table class="ranking">
            <thead>
              <tr>
                <th scope="col">Mesh</th>
                <th scope="col">Strategy</th>
                <th scope="col">Remat</th>
                <th scope="col">Step time</th>
                <th scope="col" class="number">MFU</th>
                <th scope="col" class="number">Per device</th>
                <th scope="col">Why</th>
                <th scope="col">
                  <span class="visually-hidden">Use</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {advice.ranked.map((candidate) => (
                <tr key={`${candidate.mesh} ${candidate.strategy}`}>
                  <th scope="row">
                    <code>{candidate.mesh}</code>
                  </th>
                  <td>{candidate.strategy}</td>
                  <td>
                    {candidate.remat || "none"}
                    {candidate.n_microbatches > 1 && <span class="muted"> {candidate.n_microbatches} microbatches</span>}
                  </td>
                  <td class="step-time">
                    {candidate.step_seconds === null ? (
                      "unknown"
                    ) : (
                      <span class="step-bar">
                        <span class="step-length" style={{ width: `${(90 * candidate.step_seconds) / slowest}px` }} />
                        {secondsText(candidate.step_seconds)}
                      </span>
                    )}
                  </td>
                  <td class="number">{candidate.mfu === null ? "" : `${Math.round(candidate.mfu * 100)} %`}</td>
                  <td class="number">{bytesText(candidate.bytes_per_device)}</td>
                  <td class="why">{candidate.reason}</td>
                  <td>
                    <button type="button" class="small" aria-label={`Use ${candidate.mesh}`} onClick={() => onUse(candidate)}>
                      Use
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <MemoryNote advice={advice} plan={plan} />
      {advice.others.length > 0 && (
        <details>
          <summary>
            {advice.n_others.toLocaleString("en-US")} others and why they lost
          </summary>
          <ul class="losers">
            {advice.others.map((candidate, index) => (
              <li key={index}>
                <code>{candidate.mesh}</code> {candidate.strategy} <span class="muted">{candidate.reason}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
      {advice.notes.length > 0 && (
        <details>
          <summary>
            Assumptions, with options of <code>shardlab advise</code>
          </summary>
          {advice.notes.map((note) => (
            <p class="muted note" key={note}>
              {note}
            </p>
          ))}
        </details>
      )}
    </div>
  );
}

/** The plan above and a row of the ranking may name one mesh and show two amounts: say what each contains. */
function MemoryNote({ advice, plan }: { advice: AdviceView; plan: PlanView | null }) {
  if (advice.ranked.length === 0) return null;
  return (
    <p class="muted note">
      Per device: parameters, gradients, optimizer states and activations of that row, each with its own remat policy and microbatches.
      {plan !== null && ` The plan above is ${bytesText(plan.bytes_per_device)} with ${planSetting(plan)}; Use copies a row's settings into it.`}
    </p>
  );
}

function secondsText(seconds: number): string {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${(seconds * 1e6).toPrecision(3)} µs`;
}
