// The offline page of one recording, and the output of a notebook cell.
//
// In an HTML file: <script type="application/json" id="recording"> holds the recording, <div id="debugger"> the viewer.
// In a notebook, shardlab.recording's anywidget module calls globalThis.shardlabRecording.mount(element, recording).

import { render } from "preact";
import { RunSummary, Viewer } from "../debugger/viewer.tsx";
import { DebuggerState } from "../debugger/state.ts";
import type { Recording } from "../shared/recording.ts";

function RecordingPage({ state }: { state: DebuggerState }) {
  return (
    <div class="dbg is-offline">
      <div class="dbg-bar">
        <h1>{state.run.value?.recording.title}</h1>
        <RunSummary state={state} />
      </div>
      <Viewer state={state} />
    </div>
  );
}

/** Show a recording in an element; returns a function that removes it. */
export function mount(element: HTMLElement, recording: Recording): () => void {
  const state = new DebuggerState();
  state.open(recording);
  render(<RecordingPage state={state} />, element);
  return () => {
    state.pause();
    render(null, element);
  };
}

(globalThis as { shardlabRecording?: { mount: typeof mount } }).shardlabRecording = { mount };

const element = document.querySelector<HTMLElement>("#debugger");
const data = document.querySelector("script#recording")?.textContent;
if (element !== null && data) mount(element, JSON.parse(data) as Recording);
