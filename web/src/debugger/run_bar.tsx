// The bar on top of the lab: program, mesh, chip, Run, and what to do with a recording.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { meshText, parseMesh } from "./mesh_grid.ts";
import { functionNames, type LabState } from "./lab_state.ts";

export function RunBar({ lab }: { lab: LabState }) {
  const gallery = lab.gallery.value;
  return (
    <form
      class="dbg-bar"
      aria-label="Program and mesh"
      onSubmit={(event) => {
        event.preventDefault();
        void lab.run();
      }}
    >
      <h1 class="visually-hidden">Program lab</h1>
      <div class="dbg-field">
        <label for="dbg-example">Program</label>
        <div class="dbg-inline">
          <select
            id="dbg-example"
            value={lab.example.value?.slug ?? ""}
            onChange={(event) => {
              const example = gallery.find((entry) => entry.slug === event.currentTarget.value);
              if (example !== undefined) lab.openExample(example);
            }}
          >
            {lab.example.value === null && <option value="">{programTitle(lab)}</option>}
            {(["pattern", "hazard"] as const).map((kind) => (
              <optgroup key={kind} label={kind === "pattern" ? "Patterns" : "Hazards"}>
                {gallery.filter((entry) => entry.kind === kind).map((entry) => <option key={entry.slug} value={entry.slug}>{entry.title}</option>)}
              </optgroup>
            ))}
          </select>
          <OpenFile lab={lab} />
        </div>
      </div>
      <MeshField lab={lab} />
      <FunctionField lab={lab} />
      <div class="dbg-field">
        <label for="dbg-chip">Chip</label>
        <select id="dbg-chip" value={lab.hardware.value} onChange={(event) => (lab.hardware.value = event.currentTarget.value)}>
          {lab.chips.map((chip) => <option key={chip} value={chip}>{chip}</option>)}
        </select>
      </div>
      <div class="dbg-field dbg-run-field">
        <span class="dbg-label" role="status" title={runStatus(lab)}>{runStatus(lab)}</span>
        <div class="dbg-inline">
          <button type="submit" class="primary dbg-run" title="Run the program (Ctrl and Enter)">Run</button>
          {/* Its place is always there, so that Run does not move. */}
          <button type="button" class="dbg-cancel" disabled={!lab.isRunning.value} onClick={() => void lab.cancel()}>Cancel</button>
        </div>
      </div>
      <div class="dbg-inline dbg-actions"><RecordingMenu lab={lab} /></div>
    </form>
  );
}

/** What the program is called that is none of the examples. */
function programTitle(lab: LabState): string {
  if (lab.brokenBy.value !== null) return "a broken copy";
  const title = lab.openedTitle.value;
  // A title of one word is the name of the function that was recorded.
  if (/^\w*$/.test(title)) return "your own program";
  return lab.isStale.value ? `${title}, changed` : title;
}

function OpenFile({ lab }: { lab: LabState }) {
  return (
    <>
      <input
        id="dbg-file"
        class="visually-hidden"
        type="file"
        accept=".py,.json,.gz"
        aria-label="Open a program or a recording"
        onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          if (file !== undefined) void lab.openFile(file);
          event.currentTarget.value = "";
        }}
      />
      <button type="button" onClick={() => document.getElementById("dbg-file")?.click()}>Open file</button>
    </>
  );
}

function runStatus(lab: LabState): string {
  const job = lab.job.value;
  if (!lab.isRunning.value) return "";
  if (lab.isServerSilent.value) return "the server does not answer; waiting for it";
  if (job === null) return "sending";
  if (job.is_starting) return "starting the workers";
  if (job.state === "queued") return job.position && job.position > 1 ? `waiting, ${job.position - 1} ahead` : "waiting";
  const stage = job.progress?.text ?? job.progress?.stage ?? job.progress?.message;
  return typeof stage === "string" ? stage : "running";
}

function MeshField({ lab }: { lab: LabState }) {
  const axes = lab.meshAxes.value;
  const dragged = useSignal<number | null>(null);
  const over = useSignal<number | null>(null);
  return (
    <div class="dbg-field">
      <label for="dbg-mesh">Mesh</label>
      <div class="dbg-inline">
        <input
          id="dbg-mesh"
          class="code"
          size={14}
          placeholder="the program's"
          title="The mesh to run on; empty means the mesh that the program builds, of at most 8 devices"
          value={lab.mesh.value}
          aria-invalid={typeof axes === "string"}
          onInput={(event) => (lab.mesh.value = event.currentTarget.value)}
          onBlur={() => {
            const parsed = parseMesh(lab.mesh.value);
            if (typeof parsed !== "string") lab.mesh.value = meshText(parsed);
          }}
        />
        {typeof axes !== "string" && (
          <div class="mesh-chips" role="group" aria-label="Mesh axes">
            {axes.map(([name, size], index) => (
              <span
                key={name}
                class={`mesh-chip mesh-chip-${index % 8}${over.value === index ? " is-over" : ""}`}
                draggable
                title={`Drag to change the order of the axes`}
                onDragStart={() => (dragged.value = index)}
                onDragOver={(event) => {
                  if (dragged.value === null) return;
                  event.preventDefault();
                  over.value = index;
                }}
                onDragEnd={() => (dragged.value = over.value = null)}
                onDrop={(event) => {
                  event.preventDefault();
                  if (dragged.value !== null) lab.moveAxis(dragged.value, index);
                  dragged.value = over.value = null;
                }}
              >
                <span class="name">{name}</span>
                <button type="button" aria-label={`Halve mesh axis ${name}`} disabled={size <= 1} onClick={() => lab.setAxis(index, Math.floor(size / 2))}>{"\u2212"}</button>
                <span class="size">{size}</span>
                <button type="button" aria-label={`Double mesh axis ${name}`} onClick={() => lab.setAxis(index, size * 2)}>+</button>
              </span>
            ))}
          </div>
        )}
      </div>
    </div>
  );
}

function FunctionField({ lab }: { lab: LabState }) {
  return (
    <div class="dbg-field">
      <label for="dbg-function">Function</label>
      <input
        id="dbg-function"
        class="code"
        size={9}
        list="dbg-functions"
        autocomplete="off"
        placeholder={lab.example.value?.target ?? "auto"}
        title="The function to record; empty means automatic"
        value={lab.functionName.value}
        onInput={(event) => (lab.functionName.value = event.currentTarget.value)}
      />
      <datalist id="dbg-functions">{functionNames(lab.text.value).map((name) => <option key={name} value={name} />)}</datalist>
    </div>
  );
}

function RecordingMenu({ lab }: { lab: LabState }) {
  const run = lab.viewer.run.value;
  const isCopied = useSignal(false);
  if (run === null) return null;
  const id = lab.recordingId.value;
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(run.recording)], { type: "application/json" }));
    link.download = `${run.recording.title.replace(/\W+/g, "-") || "recording"}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const copy = async () => {
    await navigator.clipboard.writeText(`${location.origin}/lab?recording=${id}`);
    isCopied.value = true;
    setTimeout(() => (isCopied.value = false), 2000);
  };
  return (
    <>
      <button type="button" disabled={lab.isStale.value} onClick={() => lab.pin()} title="Keep this run as A and compare the next one with it">Pin as A</button>
      <Menu label={isCopied.value ? "Link copied" : "Share and export"}>
        {id !== null && <button type="button" onClick={() => void copy()}>Copy a link to this run</button>}
        {id !== null && <a href={`/api/v1/recordings/${id}.html`} download>One offline HTML file</a>}
        <button type="button" onClick={save}>Recording (JSON)</button>
        {id !== null && <a href={`/api/v1/recordings/${id}/perfetto.json`} download>Timeline for Perfetto</a>}
      </Menu>
    </>
  );
}

/** Closes after a choice, on Escape, and on a click elsewhere. */
function Menu({ label, children }: { label: string; children: ComponentChildren }) {
  const details = useRef<HTMLDetailsElement>(null);
  const close = () => {
    if (details.current !== null) details.current.open = false;
  };
  useEffect(() => {
    const onPointerDown = (event: PointerEvent) => {
      if (!event.composedPath().includes(details.current!)) close();
    };
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || !details.current?.open) return;
      const hadFocus = details.current.contains(document.activeElement);
      close();
      // The focus was on a choice that is hidden now.
      if (hadFocus) details.current.querySelector("summary")?.focus();
    };
    document.addEventListener("pointerdown", onPointerDown);
    document.addEventListener("keydown", onKeyDown);
    return () => {
      document.removeEventListener("pointerdown", onPointerDown);
      document.removeEventListener("keydown", onKeyDown);
    };
  }, []);
  return (
    <details class="dbg-menu" ref={details}>
      <summary>{label}</summary>
      <div onClick={close}>{children}</div>
    </details>
  );
}
