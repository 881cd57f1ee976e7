// What the values of a run show by themselves: copies that disagree, and the first nan.

import type { Finding, Value } from "../shared/recording.ts";
import { valueLabel, type LoadedRecording } from "./loaded_recording.ts";

export interface Observation extends Finding {
  step: number;
}

/** One observation for each line, at the first step that shows it. A finding on that line says it better. */
export function observeRun(run: LoadedRecording): Observation[] {
  const observations: Observation[] = [];
  const found = new Set(run.recording.findings.map((finding) => `${finding.file}:${finding.line}:${finding.code}`));
  const lines = new Set<string>();
  const disagreed = new Set<number>();
  let hasNan = run.recording.inputs.some((input) => run.values[input.value]?.groups.some((group) => group.n_nan > 0));
  run.steps.forEach((step, index) => {
    for (const id of step.writes) {
      const value = run.values[id];
      if (value === undefined) continue;
      const base = { file: step.file, line: step.line, step: index };
      const line = `${step.file}:${step.line}`;
      // What is computed from copies that disagree disagrees too; the first place is the one to look at.
      const isInherited = step.reads.some((read) => disagreed.has(read));
      if (value.disagrees) disagreed.add(id);
      if (value.disagrees && !isInherited && !lines.has(line) && !found.has(`${line}:hazard.replicas_differ`)) {
        lines.add(line);
        observations.push({
          ...base,
          code: "copies disagree",
          severity: "error",
          message: `The copies of ${describe(run, id)} must agree${overAxes(value)}, but the devices hold ${value.n_groups} different values.`,
          fix: "",
        });
      }
      const broken = value.groups.filter((group) => group.n_nan > 0);
      if (broken.length > 0 && !hasNan) {
        hasNan = true;
        const devices = broken.map((group) => group.devices).join(", ");
        observations.push({
          ...base,
          code: "first nan",
          severity: "warning",
          message: `The first nan is in ${describe(run, id)}, on device ${devices}.`,
          fix: "",
        });
      }
    }
  });
  return observations;
}

function describe(run: LoadedRecording, id: number): string {
  const label = valueLabel(run, id);
  return run.values[id]?.name || label === "result" ? label : `the result of ${label}`;
}

/** " over model": the axes along which the copies differ although the type declares them equal. */
function overAxes(value: Value): string {
  const axes = value.varies_over.filter((axis) => !(value.declared_over ?? []).includes(axis));
  return axes.length > 0 ? ` over ${axes.join(", ")}` : "";
}
