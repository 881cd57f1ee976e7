// The state of one viewer. Views read signals; everything that changes the position goes through the methods here.

import { batch, computed, signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Recording, Step, Value } from "../shared/recording.ts";
import { differingDevices, matchingValue } from "./compare_runs.ts";
import { LoadedRecording } from "./loaded_recording.ts";
import { observeRun, type Observation } from "./observations.ts";
import {
  hopCount,
  nearestStop,
  nextPosition,
  previousPosition,
  resultHop,
  stopSteps,
  type Granularity,
  type Position,
} from "./navigation.ts";

export type ShownValue = { kind: "follow" } | { kind: "name"; name: string } | { kind: "id"; id: number };
export type DeviceViewMode = "auto" | "mesh" | "groups" | "table";
export interface SourceLine {
  file: number;
  line: number;
}

/** Above this number of devices the view starts grouped, and a collective shows one of its groups. */
export const MANY_DEVICES = 64;
/** Above this number of devices the hops of a collective are drawn for one of its groups. */
export const MANY_FOR_HOPS = 32;
/** Above this number of participants a collective is drawn as a matrix. */
export const LARGE_GROUP = 12;
const STEP_MS = 900;
const HOP_MS = 1100;

export class DebuggerState {
  readonly run = signal<LoadedRecording | null>(null);
  /** Run A of a comparison; the viewer shows run B. */
  readonly baseline = signal<LoadedRecording | null>(null);
  readonly position = signal<Position>({ step: 0, hop: 0 });
  readonly granularity = signal<Granularity>("line");
  readonly overLoops = signal(false);
  readonly throughHops = signal(true);
  readonly isPlaying = signal(false);
  readonly speed = signal(1);
  readonly shown = signal<ShownValue>({ kind: "follow" });
  readonly mode = signal<DeviceViewMode>("auto");
  readonly selectedLine = signal<SourceLine | null>(null);
  readonly hoveredStep = signal<number | null>(null);
  readonly selectedDevice = signal<number | null>(null);
  readonly selectedGroup = signal(0);
  /** The tab of the details: values, collectives, findings, or one that the lab adds. */
  readonly panel = signal("values");
  readonly isPredicting = signal(false);
  /** Collective steps that the reader has already predicted or seen. */
  readonly revealed = signal<ReadonlySet<number>>(new Set());
  /** Fraction of the current hop that has been animated. */
  readonly hopProgress = signal(1);
  private frame = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  readonly stops = computed(() => {
    const run = this.run.value;
    return run === null ? [] : stopSteps(run.steps, { granularity: this.granularity.value, overLoops: this.overLoops.value });
  });
  readonly step = computed<Step | null>(() => this.run.value?.steps[this.position.value.step] ?? null);
  readonly stopIndex = computed(() => nearestStop(this.stops.value, this.position.value.step));
  /** Collective steps that are still to be predicted: no view shows what they do or what they send. */
  readonly unrevealed = computed<ReadonlySet<number>>(() => {
    const [run, revealed] = [this.run.value, this.revealed.value];
    if (run === null || !this.isPredicting.value) return new Set();
    return new Set(run.collectiveSteps().filter((index) => !revealed.has(index)));
  });
  readonly isHidden = computed(() => this.unrevealed.value.has(this.position.value.step));
  /** The value on the stage. Before and during a collective that is its operand, after it the result. */
  readonly value = computed<Value | null>(() => {
    const run = this.run.value;
    const step = this.step.value;
    if (run === null || step === null) return null;
    const shown = this.shown.value;
    if (shown.kind === "id") return run.values[shown.id] ?? null;
    if (shown.kind === "name") {
      const live = run.liveValues(this.position.value.step).find((entry) => entry.name === shown.name);
      if (live !== undefined) return run.values[live.value] ?? null;
    }
    const collective = step.collective;
    if (collective !== null && this.position.value.hop < resultHop(step)) return run.values[collective.reads] ?? null;
    return run.values[step.writes[0] ?? step.reads[0] ?? -1] ?? null;
  });
  /** Devices whose value differs from the same value of run A. */
  readonly divergent = computed<ReadonlySet<number>>(() => {
    const [run, baseline, value] = [this.run.value, this.baseline.value, this.value.value];
    if (run === null || baseline === null || value === null) return new Set();
    const match = matchingValue(baseline, run, value.id);
    return match === null ? new Set() : new Set(differingDevices(baseline, match, run, value));
  });
  /** The line whose steps are highlighted: the one selected, or that of the current step. */
  readonly activeLine = computed<SourceLine | null>(() => {
    const step = this.step.value;
    return this.selectedLine.value ?? (step !== null && step.line > 0 ? { file: step.file, line: step.line } : null);
  });
  readonly activeSteps = computed<ReadonlySet<number>>(() => {
    const line = this.activeLine.value;
    const totals = line === null ? null : (this.run.value?.lineTotals(line.file, line.line) ?? null);
    return new Set(totals?.steps ?? []);
  });

  readonly observations = computed<Observation[]>(() => (this.run.value === null ? [] : observeRun(this.run.value)));
  /** Devices that communicate with the selected one in the current collective. */
  readonly groupMates = computed<ReadonlySet<number>>(() => {
    const device = this.selectedDevice.value;
    const groups = this.step.value?.collective?.groups ?? [];
    const group = device === null ? undefined : groups.find((members) => members.includes(device));
    return new Set(group?.filter((member) => member !== device) ?? []);
  });

  /** The group of the current collective whose hops are drawn. */
  readonly collectiveGroup = computed<number[]>(() => {
    const groups = this.step.value?.collective?.groups ?? [];
    return groups[this.selectedGroup.value] ?? groups[0] ?? [];
  });
  readonly showsOneGroup = computed(() => {
    const collective = this.step.value?.collective;
    if (collective == null) return false;
    // A ring of more than 8 does not fit one row: drawn as a loop, every device still stands beside its neighbors.
    const isLongRing = collective.n_groups === 1 && collective.group_size > 8;
    return isLongRing || collective.group_size > LARGE_GROUP || (this.run.value?.deviceCount ?? 0) > MANY_FOR_HOPS;
  });

  /** Select a device; in a collective of many groups its group is shown. */
  selectDevice(device: number | null): void {
    batch(() => {
      this.selectedDevice.value = device;
      const groups = this.step.value?.collective?.groups ?? [];
      const index = device === null ? -1 : groups.findIndex((members) => members.includes(device));
      if (index >= 0) this.selectedGroup.value = index;
    });
  }

  open(recording: Recording): void {
    const run = new LoadedRecording(recording);
    batch(() => {
      this.pause();
      this.run.value = run;
      this.shown.value = { kind: "follow" };
      this.mode.value = "auto";
      this.selectedLine.value = null;
      this.selectedDevice.value = null;
      this.selectedGroup.value = 0;
      this.revealed.value = new Set();
      this.hopProgress.value = 1;
      this.position.value = { step: this.firstStep(run), hop: 0 };
    });
  }

  /** Where a reader starts: at the place where devices wait, or else at the first stop. */
  private firstStep(run: LoadedRecording): number {
    const waiting = run.steps.findIndex((step) => step.waiting !== null);
    return waiting >= 0 ? waiting : (this.stops.value[0] ?? 0);
  }

  goTo(step: number, hop?: number): void {
    const run = this.run.value;
    if (run === null) return;
    const target = Math.max(0, Math.min(step, run.steps.length - 1));
    this.moveTo({ step: target, hop: hop ?? resultHop(run.steps[target]) });
  }

  next(): void {
    const run = this.run.value;
    if (run === null || this.isHidden.value) return;
    this.moveTo(nextPosition(run.steps, this.stops.value, this.position.value, this.throughHops.value));
  }

  previous(): void {
    const run = this.run.value;
    if (run === null) return;
    this.moveTo(previousPosition(run.steps, this.stops.value, this.position.value, this.throughHops.value));
  }

  /** To the next stop, past all hops. */
  nextStop(direction: 1 | -1): void {
    const target = this.stops.value[this.stopIndex.value + direction];
    if (target !== undefined) this.goTo(target);
  }

  private moveTo(position: Position): void {
    const before = this.position.value;
    if (before.step === position.step && before.hop === position.hop) return;
    const movesForward = position.step === before.step && position.hop === before.hop + 1;
    batch(() => {
      this.position.value = position;
      if (position.step !== before.step) {
        this.selectedLine.value = null;
        // A watched name stays on the stage; a value chosen by its number belongs to the step it was chosen at.
        if (this.shown.value.kind === "id") this.shown.value = { kind: "follow" };
      }
    });
    this.animateHop(movesForward);
  }

  private animateHop(isForward: boolean): void {
    cancelAnimationFrame(this.frame);
    const hop = this.position.value.hop;
    const hops = hopCount(this.step.value ?? undefined);
    if (!isForward || hop < 1 || hop > hops || prefersReducedMotion()) {
      this.hopProgress.value = 1;
      return;
    }
    const start = performance.now();
    const duration = hopMilliseconds(hops) * 0.8 / this.speed.value;
    const tick = (now: number) => {
      this.hopProgress.value = Math.min(1, (now - start) / duration);
      if (this.hopProgress.value < 1) this.frame = requestAnimationFrame(tick);
    };
    this.hopProgress.value = 0;
    this.frame = requestAnimationFrame(tick);
  }

  play(): void {
    const stops = this.stops.value;
    if (this.position.value.step >= (stops[stops.length - 1] ?? 0) && this.position.value.hop >= resultHop(this.step.value ?? undefined)) {
      this.goTo(stops[0] ?? 0, 0);
    }
    this.isPlaying.value = true;
    this.schedule();
  }

  pause(): void {
    this.isPlaying.value = false;
    clearTimeout(this.timer);
  }

  togglePlay(): void {
    if (this.isPlaying.value) this.pause();
    else this.play();
  }

  private schedule(): void {
    clearTimeout(this.timer);
    const step = this.step.value ?? undefined;
    const delay = (step?.collective ? hopMilliseconds(hopCount(step)) : STEP_MS) / this.speed.value;
    this.timer = setTimeout(() => {
      const before = this.position.value;
      this.next();
      if (this.position.value === before || this.isHidden.value) this.pause();
      else this.schedule();
    }, delay);
  }

  reveal(): void {
    this.revealed.value = new Set([...this.revealed.value, this.position.value.step]);
  }
}

/** How long one hop plays: of a long collective less, so that all of its hops can be watched. */
function hopMilliseconds(hops: number): number {
  return Math.max(40, HOP_MS * Math.min(1, 14 / Math.max(1, hops)));
}

export function prefersReducedMotion(): boolean {
  return typeof matchMedia === "function" && matchMedia("(prefers-reduced-motion: reduce)").matches;
}

export const DebuggerContext = createContext<DebuggerState | null>(null);

export function useDebugger(): DebuggerState {
  const state = useContext(DebuggerContext);
  if (state === null) throw new Error("The view is outside of a DebuggerContext.");
  return state;
}
