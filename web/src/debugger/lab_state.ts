// The lab around the viewer: the program being edited, its mesh and chip, the job that runs it, and pinned runs.

import { batch, computed, effect, signal } from "@preact/signals";
import type { LineDiagnostic } from "../editor/python_editor.ts";
import type { Recording } from "../shared/recording.ts";
import * as api from "./api.ts";
import { differingDevices, matchingValue } from "./compare_runs.ts";
import { LatestRequest } from "./latest_request.ts";
import { LoadedRecording } from "./loaded_recording.ts";
import { countDevices, meshText, parseMesh, type MeshAxes } from "./mesh_grid.ts";
import { DebuggerState } from "./state.ts";

export interface ProgramSettings {
  text: string;
  mesh: string;
  /** The function to record, as the person wrote it; empty lets the server choose. */
  functionName: string;
}

export interface Fault {
  message: string;
  where: string;
  fix: string;
}

/** The last opened program. */
interface Draft extends ProgramSettings {
  example: string | null;
  hardware?: string;
  /** Whether it ran to its end: a program that failed or was cancelled does not run by itself at the next visit. */
  hasRun: boolean;
}

/** What is in the fields of this tab, with the recording on its stage. It survives a reload, also while the server is down. */
interface TabEdit extends ProgramSettings {
  hardware: string;
  recording: string | null;
}

const DRAFT_KEY = "shardlab.lab.draft";
const TAB_EDIT_KEY = "shardlab.lab.edit";

/** The functions at the top level of a program that may be recorded: those that make arguments are left out. */
export function functionNames(source: string): string[] {
  const names = [...source.matchAll(/^(?:async )?def (\w+)/gm)].map((match) => match[1]!);
  return [...new Set(names)].filter((name) => !name.endsWith("_args"));
}

/** Say which mesh a recording is on if that is not the one requested (none if empty), or not the one that the program builds; else "". */
export function meshNotice(recording: Pick<Recording, "mesh" | "program_mesh">, requested: string): string {
  const mesh = meshText(recording.mesh);
  if (requested === "") return "";
  if (requested !== mesh) return `The program builds its own mesh ${mesh}; the mesh field was not used.`;
  const built = recording.program_mesh ?? [];
  return built.length > 0 ? `The program builds the mesh ${meshText(built)}; it ran on ${mesh}, the mesh in the field.` : "";
}

/** Whether a program without a mesh in the field asked JAX for more devices than there are then. */
export function needsMesh(message: string, mesh: string): boolean {
  return mesh.trim() === "" && /Number of devices \d+ must be/.test(message);
}

export class LabState {
  readonly viewer = new DebuggerState();
  readonly text = signal("");
  readonly mesh = signal("data=4");
  readonly functionName = signal("");
  readonly hardware = signal("tpu-v5e");
  readonly gallery = signal<api.GalleryEntry[]>([]);
  readonly exampleSlug = signal<string | null>(null);
  /** The example in the editor; null as soon as its text is changed. */
  readonly example = computed(() => this.exampleWith(this.text.value));
  readonly job = signal<api.Job | null>(null);
  readonly fault = signal<Fault | null>(null);
  readonly diagnostics = signal<LineDiagnostic[]>([]);
  /** Why the recording has another mesh than the requested one; empty if it has not. */
  readonly meshNote = signal("");
  readonly recordingId = signal<string | null>(null);
  readonly edits = signal<api.ProgramEdit[] | "loading" | "waiting" | null>(null);
  /** The edit of the run on the stage, and the program as it was before. */
  readonly brokenBy = signal<{ edit: api.ProgramEdit; settings: ProgramSettings; run: LoadedRecording; id: string | null } | null>(null);
  readonly meshAxes = computed<MeshAxes | string>(() => parseMesh(this.mesh.value));
  /** From the click on Run until its result is shown; the job follows once the server has accepted the run. */
  readonly isRunning = signal(false);
  /** Whether the stage shows another run than that of the program in the editor. */
  readonly isStale = computed(() => {
    const run = this.viewer.run.value;
    return run !== null && (this.isRunning.value || this.text.value !== (run.recording.sources[0]?.text ?? ""));
  });
  /** What the first run opens with: "collective" is its first collective. Links of the home page have it. */
  private opening: string | null = null;
  /** The run that was cancelled last, until the next one starts: its program, and how long it ran. */
  readonly cancelled = signal<{ text: string; seconds: number } | null>(null);
  private runStart = 0;
  /** The program of the run that failed without a recording; null if the last one did not. */
  private readonly failedText = signal<string | null>(null);
  /** Whether the run of the program in the editor failed, so that the stage still shows an earlier one. */
  readonly hasFailed = computed(() => this.isStale.value && !this.isRunning.value && this.failedText.value === this.text.value);
  /** Why the lines of the program in the editor have no marks. */
  readonly unmarkedText = computed(() => {
    if (this.isRunning.value) return "Running\u2026 The lines are marked when the result is there.";
    if (this.hasFailed.value) return "This run failed, so its lines have no marks.";
    if (this.cancelled.value?.text === this.text.value) return "The run was cancelled, so its lines have no marks.";
    return "The program was edited after this run. Run it again to see the marks on its lines.";
  });
  /** Whether the server does not answer while a run is followed. */
  readonly isServerSilent = signal(false);
  /** The title of a recording that was opened by its address; empty for a program of this page. */
  readonly openedTitle = signal("");
  /** Whether the editor has a text from before a reload, and the stage the recording that it was changed from. */
  readonly isRestored = signal(false);
  /** The number of the newest run: what an older one still reports is ignored. */
  private runCount = 0;
  /** Lists the edits of "Break it"; a program that is being typed is not sent for each key. */
  private readonly editSearch = new LatestRequest((program: { text: string; mesh: string }) => api.fetchEdits(program.text, program.mesh));

  constructor(readonly chips: string[]) {
    // A fault belongs to the text that was run.
    effect(() => {
      this.text.value;
      this.mesh.value;
      this.diagnostics.value = [];
      this.edits.value = null;
      this.editSearch.drop();
    });
  }

  /** From now on what is typed is saved at once: a restart of the server or a reload loses nothing. */
  private saveEdits(): void {
    effect(() => {
      const edit: TabEdit = { ...this.settings(), hardware: this.hardware.value, recording: this.recordingId.value };
      const run = this.viewer.run.value;
      if (!edit.text) return;
      store(sessionStorage, TAB_EDIT_KEY, edit);
      // A recording that is only looked at does not replace the person's own program.
      if (run === null || edit.text !== (run.recording.sources[0]?.text ?? "")) this.saveDraft(this.settings(), false);
    });
  }

  /** Put back what was typed before a reload of this recording. */
  private restoreEdit(edit: TabEdit | null, recording: string | null): void {
    if (edit === null || edit.recording !== recording || !edit.text) return;
    batch(() => {
      this.isRestored.value = this.viewer.run.value !== null && edit.text !== this.text.value;
      this.text.value = edit.text;
      this.mesh.value = edit.mesh;
      this.functionName.value = edit.functionName;
      this.hardware.value = edit.hardware;
    });
  }

  /** Back to the program and the mesh of the recording on the stage. */
  returnToRecording(): void {
    const run = this.viewer.run.value;
    if (run === null) return;
    batch(() => {
      this.text.value = run.recording.sources[0]?.text ?? "";
      this.mesh.value = meshText(run.mesh);
      this.functionName.value = "";
      this.isRestored.value = false;
      this.fault.value = null;
    });
  }

  /** The example with exactly this text; of several the chosen one. */
  private exampleWith(text: string): api.GalleryEntry | null {
    const matches = this.gallery.value.filter((entry) => entry.source === text);
    return matches.find((entry) => entry.slug === this.exampleSlug.value) ?? matches[0] ?? null;
  }

  private settings(): ProgramSettings {
    return { text: this.text.value, mesh: this.mesh.value, functionName: this.functionName.value };
  }

  /** An example names its function; in any other program the server chooses, unless the person names one. */
  private requestFor(settings: ProgramSettings): api.RecordingRequest {
    const target = settings.functionName.trim() || (this.exampleWith(settings.text)?.target ?? null);
    return { source: settings.text, mesh: settings.mesh, target, hardware: this.hardware.value || null };
  }

  async start(parameters: URLSearchParams): Promise<void> {
    const edit = load<TabEdit>(sessionStorage, TAB_EDIT_KEY);
    try {
      this.gallery.value = await api.fetchGallery();
    } catch (error) {
      this.showError(error);
    }
    await this.openFirst(parameters, edit);
    this.saveEdits();
  }

  private async openFirst(parameters: URLSearchParams, edit: TabEdit | null): Promise<void> {
    const recording = parameters.get("recording");
    if (recording !== null) {
      await this.openStored(recording);
      this.restoreEdit(edit, recording);
      return;
    }
    const slug = parameters.get("example");
    this.opening = parameters.get("show");
    if (this.opening === "break") this.viewer.panel.value = "break";
    const example = this.gallery.value.find((entry) => entry.slug === slug);
    if (example !== undefined) this.openExample(example);
    else if (slug !== null) this.fault.value = { message: `There is no example '${slug}'.`, where: "", fix: "choose one from the list." };
    else if (!this.restoreDraft(edit) && this.gallery.value[0] !== undefined) this.openExample(this.gallery.value[0]);
  }

  openExample(example: api.GalleryEntry): void {
    batch(() => {
      this.exampleSlug.value = example.slug;
      this.openProgram({ text: example.source, mesh: example.mesh, functionName: "" });
    });
    void this.run();
  }

  openProgram(settings: ProgramSettings): void {
    this.abandonRun();
    batch(() => {
      this.text.value = settings.text;
      this.mesh.value = settings.mesh;
      this.functionName.value = settings.functionName;
      this.meshNote.value = "";
      this.brokenBy.value = null;
      this.fault.value = null;
      this.openedTitle.value = "";
      this.isRestored.value = false;
    });
  }

  private async openStored(id: string): Promise<void> {
    const run = this.runCount;
    try {
      const recording = await api.fetchRecording(id);
      // Meanwhile the person may have opened or run something else.
      if (run !== this.runCount) return;
      this.show(recording, id);
      this.openedTitle.value = recording.title;
      this.text.value = recording.sources[0]?.text ?? "";
    } catch (error) {
      this.showError(error);
    }
  }

  /** Open a program (.py) or a recording (.json, .json.gz) from the person's disk. */
  async openFile(file: File): Promise<void> {
    try {
      if (/\.json(\.gz)?$/.test(file.name)) {
        const recording = await api.readRecordingFile(file);
        this.abandonRun();
        this.brokenBy.value = null;
        this.show(recording, null);
        this.openedTitle.value = recording.title;
        this.text.value = recording.sources[0]?.text ?? "";
      } else {
        const text = await api.readProgramFile(file);
        this.exampleSlug.value = null;
        this.openProgram({ text, mesh: this.mesh.value, functionName: "" });
        this.viewer.run.value = null;
        this.beginDraft();
      }
    } catch (error) {
      this.showError(error);
    }
  }

  /** Put a recording on the stage. `requestedMesh` is that of the run which made it. */
  show(recording: Recording, id: string | null, requestedMesh?: string): void {
    const mesh = meshText(recording.mesh);
    const requested = requestedMesh === undefined ? mesh : normalMesh(requestedMesh);
    batch(() => {
      this.viewer.open(recording);
      const first = this.viewer.run.value?.collectiveSteps()[0];
      if (this.opening === "collective" && first !== undefined) this.viewer.goTo(first, 0);
      this.opening = null;
      this.recordingId.value = id;
      this.meshNote.value = recording.steps.length > 0 ? meshNotice(recording, requested) : "";
      // A mesh that was changed during the run is for the next one.
      // An empty field stays empty: the program's own mesh may change with its text.
      if (requestedMesh === undefined || (requested !== "" && this.mesh.value === requestedMesh)) this.mesh.value = mesh;
      if (recording.hardware !== null) this.hardware.value = recording.hardware;
      this.fault.value = null;
      this.isRestored.value = false;
    });
    if (id !== null) history.replaceState(null, "", `?recording=${encodeURIComponent(id)}`);
  }

  /** Run the program as it is in the editor. */
  async run(): Promise<void> {
    if (typeof this.meshAxes.value === "string") {
      this.fault.value = { message: this.meshAxes.value, where: "", fix: "" };
      this.failedText.value = this.text.value;
      return;
    }
    const settings = this.settings();
    this.beginDraft();
    const wasBroken = this.brokenBy.value !== null;
    await this.record(this.requestFor(settings), (recording, id) => {
      // Running the program again ends a break; a run pinned for comparison stays.
      if (wasBroken) {
        this.brokenBy.value = null;
        this.viewer.baseline.value = null;
      }
      this.show(recording, id, settings.mesh);
      this.saveDraft(settings, recording.steps.length > 0);
    });
  }

  /** Run the program with one edit of "Break it" and compare with the run on the stage. */
  async breakIt(edit: api.ProgramEdit): Promise<void> {
    const intact = this.brokenBy.value?.run ?? this.viewer.run.value;
    const settings = this.brokenBy.value?.settings ?? this.settings();
    const intactId = this.brokenBy.value?.id ?? this.recordingId.value;
    if (intact === null) return;
    await this.record({ ...this.requestFor({ ...settings, mesh: settings.mesh.trim() || meshText(intact.mesh) }), edit: edit.id }, (recording, id) => {
      const edits = this.edits.value;
      batch(() => {
        this.show(recording, id);
        this.viewer.baseline.value = intact;
        this.text.value = recording.sources[0]?.text ?? settings.text;
        this.brokenBy.value = { edit, settings, run: intact, id: intactId };
      });
      this.goToFirstDifference(intact);
      this.edits.value = edits;
    });
  }

  /** Where a break begins to show: the first step that writes other numbers than before. */
  private goToFirstDifference(intact: LoadedRecording): void {
    const run = this.viewer.run.value;
    if (run === null || run.steps.some((step) => step.waiting !== null)) return;
    const differs = (id: number) => {
      const match = matchingValue(intact, run, id);
      return match !== null && differingDevices(intact, match, run, run.values[id]!).length > 0;
    };
    const first = run.steps.findIndex((step) => step.writes.some(differs));
    if (first >= 0) this.viewer.goTo(first);
  }

  /** Back to the program before the break. */
  restore(): void {
    const broken = this.brokenBy.value;
    if (broken === null) return;
    const edits = this.edits.value;
    batch(() => {
      this.openProgram(broken.settings);
      this.viewer.baseline.value = null;
      this.show(broken.run.recording, broken.id);
      this.mesh.value = broken.settings.mesh;
    });
    this.edits.value = edits;
  }

  private async record(body: api.RecordingRequest, onRecording: (recording: Recording, id: string | null) => void): Promise<void> {
    this.abandonRun();
    const run = this.runCount;
    this.fault.value = null;
    this.meshNote.value = "";
    this.diagnostics.value = [];
    this.failedText.value = null;
    this.isRunning.value = true;
    this.runStart = performance.now();
    try {
      const job = await api.startRecording(body);
      if (run !== this.runCount) {
        // Abandoned before the server answered.
        cancelQuietly(job);
        return;
      }
      this.job.value = job;
      const update = (newer: api.Job) => {
        if (run !== this.runCount) return;
        this.job.value = newer;
        this.isServerSilent.value = false;
      };
      const ended = await api.followJob(job, update, () => (this.isServerSilent.value = run === this.runCount));
      if (run === this.runCount) await this.finish(run, ended, onRecording);
    } catch (error) {
      if (run === this.runCount) {
        this.showError(error);
        this.failedText.value = body.source;
      }
    }
    if (run === this.runCount) this.endRun();
  }

  private async finish(run: number, job: api.Job, onRecording: (recording: Recording, id: string | null) => void): Promise<void> {
    if (job.state === "failed") throw api.errorFrom(job.error, "The run failed.");
    if (job.state === "cancelled") this.noteCancelled();
    if (job.state !== "done" || !job.result_url) return;
    const id = decodeURIComponent(job.result_url.split("/").pop()!.replace(/\?.*$/, ""));
    const recording = await api.fetchRecording(id);
    if (run !== this.runCount) return;
    onRecording(recording, id);
    // Faults of the program itself are part of the recording.
    const failure = recording.failure;
    if (failure && recording.steps.length === 0) this.fault.value = { message: failure.message, where: failure.where || (failure.line > 0 ? `line ${failure.line}` : ""), fix: needsMesh(failure.message, this.mesh.value) ? "write the mesh of the program into the Mesh field; without it there are 8 devices." : failure.fix };
  }

  private endRun(): void {
    batch(() => {
      this.job.value = null;
      this.isRunning.value = false;
      this.isServerSilent.value = false;
    });
  }

  private noteCancelled(): void {
    this.cancelled.value = { text: this.text.value, seconds: (performance.now() - this.runStart) / 1000 };
  }

  /** Cancel the run in progress, if any; nothing that it still reports is shown. */
  private abandonRun(): void {
    this.runCount += 1;
    this.cancelled.value = null;
    if (this.job.value !== null) cancelQuietly(this.job.value);
    this.endRun();
  }

  async cancel(): Promise<void> {
    const job = this.job.value;
    if (job === null) {
      this.abandonRun();
      this.noteCancelled();
      return;
    }
    try {
      await api.cancelJob(job.id);
    } catch (error) {
      this.showError(error);
    }
  }

  /** List the edits of the program on the stage; those of a text that is being typed would be of no use. */
  async loadEdits(): Promise<void> {
    if (this.edits.value !== null || this.brokenBy.value !== null || this.isStale.value) return;
    this.edits.value = "loading";
    try {
      const edits = await this.editSearch.request({ text: this.text.value, mesh: this.mesh.value.trim() || meshText(this.viewer.run.value?.mesh ?? []) });
      if (edits !== null) this.edits.value = edits;
    } catch (error) {
      // Nobody asked for this request: what the person does next matters more than why it has to wait.
      const isTooMany = error instanceof api.ApiError && error.isTooMany;
      this.edits.value = isTooMany ? "waiting" : [];
      if (!isTooMany) this.showError(error);
    }
  }

  retryEdits(): void {
    this.edits.value = null;
    void this.loadEdits();
  }

  pin(): void {
    if (this.isStale.value) return;
    this.viewer.baseline.value = this.viewer.run.value;
  }

  setAxis(index: number, size: number): void {
    const axes = this.meshAxes.value;
    if (typeof axes === "string") return;
    const next = axes.map(([name, old], at): [string, number] => [name, at === index ? Math.max(1, size) : old]);
    if (countDevices(next) <= 4096) this.mesh.value = meshText(next);
  }

  moveAxis(from: number, to: number): void {
    const axes = this.meshAxes.value;
    if (typeof axes === "string" || from === to) return;
    const next = axes.slice();
    next.splice(to, 0, ...next.splice(from, 1));
    this.mesh.value = meshText(next);
  }

  private showError(error: unknown): void {
    const fault = error instanceof api.ApiError ? error : null;
    this.fault.value = { message: error instanceof Error ? error.message : String(error), where: fault?.where ?? "", fix: fault?.fix ?? "" };
    if (fault !== null && fault.line > 0) this.diagnostics.value = [{ line: fault.line, severity: "error", message: fault.fix ? `${fault.message}\nTry: ${fault.fix}` : fault.message }];
  }

  private beginDraft(): void {
    this.saveDraft(this.settings(), false);
    // An address that names an older recording or an example would bring that back at a reload.
    history.replaceState(null, "", location.pathname);
  }

  private saveDraft(settings: ProgramSettings, hasRun: boolean): void {
    store(localStorage, DRAFT_KEY, { ...settings, example: this.exampleSlug.value, hardware: this.hardware.value, hasRun } satisfies Draft);
  }

  private restoreDraft(edit: TabEdit | null): boolean {
    const latest = load<Draft>(localStorage, DRAFT_KEY);
    // Another tab may have written the latest draft; a reload of this one brings back its own.
    const isOwn = edit === null || edit.recording !== null || !edit.text || edit.text === latest?.text;
    const draft: Draft | null = isOwn ? latest : { ...edit, example: null, hasRun: false };
    if (draft === null || typeof draft.text !== "string" || !draft.text) return false;
    this.exampleSlug.value = draft.example;
    this.openProgram({ ...draft, functionName: draft.functionName ?? "" });
    if (draft.hardware !== undefined && this.chips.includes(draft.hardware)) this.hardware.value = draft.hardware;
    if (draft.hasRun) void this.run();
    return true;
  }
}

function store(storage: Storage, key: string, content: unknown): void {
  try {
    storage.setItem(key, JSON.stringify(content));
  } catch {
    // Private windows may refuse; the lab works without drafts.
  }
}

function load<Content>(storage: Storage, key: string): Content | null {
  try {
    return JSON.parse(storage.getItem(key) ?? "null") as Content | null;
  } catch {
    return null;
  }
}

/** Nobody waits for this job any more, so neither for an error: it may have ended meanwhile. */
function cancelQuietly(job: api.Job): void {
  api.cancelJob(job.id).catch(() => undefined);
}

/** The mesh as a recording writes it. */
function normalMesh(text: string): string {
  const axes = parseMesh(text);
  return typeof axes === "string" ? text : meshText(axes);
}
