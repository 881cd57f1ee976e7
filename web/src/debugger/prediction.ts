// The questions about one collective step.

import type { Question } from "../shared/predict.tsx";
import { formatBytes, formatSeconds } from "./format.ts";
import { collectiveKind } from "./hop_state.ts";
import type { LoadedRecording } from "./loaded_recording.ts";

const OPERATIONS = ["psum", "all_gather", "reduce_scatter", "all_to_all", "ppermute"];

export interface Prediction {
  title: string;
  context: string;
  questions: Question[];
  explanation: string;
}

export function predictionFor(run: LoadedRecording, stepIndex: number): Prediction {
  const step = run.steps[stepIndex]!;
  const collective = step.collective!;
  const questions: Question[] = [];
  const operand = run.values[collective.reads];
  const result = run.values[collective.writes];
  // The line often names the collective; in the backward pass it does not, and then it is worth a question.
  if (!step.code.includes(collective.op) || step.phase === "backward") {
    const options = OPERATIONS.includes(collective.op) ? OPERATIONS : [collective.op, ...OPERATIONS.slice(0, 4)];
    questions.push({ prompt: "Which collective runs here?", options, answer: collective.op });
  }
  if (operand && result) {
    questions.push({
      prompt: `The operand is ${shapeText(operand.shape)} on each device. What is the local shape of the result?`,
      answer: shapeText(result.shape),
      placeholder: "4, 8",
    });
  }
  questions.push(bytesQuestion(collective.wire_bytes, collective.payload_bytes, collective.group_size));
  const kind = collectiveKind(collective.op);
  const formula = kind === "reduce" ? "2 (g - 1) / g of the operand" : kind === "all_gather" ? "(g - 1) times its shard" : kind === "permute" ? "its operand" : "(g - 1) / g of the operand";
  const time = collective.seconds === null ? "" : ` That takes ${formatSeconds(collective.seconds)} on ${run.recording.hardware ?? "the chosen chip"}.`;
  return {
    title: "Predict the next step",
    context: step.code,
    questions,
    explanation: `${collective.algorithm} among g = ${collective.group_size} devices along ${collective.axes.join(", ")}: each device sends ${formula}, ${formatBytes(collective.wire_bytes)}.${time}`,
  };
}

function bytesQuestion(wire: number, payload: number, groupSize: number): Question {
  const candidates = [wire, payload, payload * groupSize, payload * 2, Math.round(payload / groupSize), Math.round((payload * (groupSize - 1)) / groupSize)];
  const options = [...new Set(candidates.map(formatBytes))].slice(0, 4);
  return { prompt: "How many bytes does each device send?", options: options.sort(byMagnitude(candidates)), answer: formatBytes(wire) };
}

function byMagnitude(candidates: number[]): (first: string, second: string) => number {
  const order = [...candidates].sort((first, second) => first - second).map(formatBytes);
  return (first, second) => order.indexOf(first) - order.indexOf(second);
}

function shapeText(shape: number[]): string {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}
