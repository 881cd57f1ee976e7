// The offline page of one recording, and the output of a notebook cell.
//
// <script type="application/json" id="recording"> holds the recording; the viewer replaces what is in #app, which is the
// recording as text for a reader without JavaScript. A notebook shows the same page in a frame.

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

const element = document.querySelector<HTMLElement>("#app");
const data = document.querySelector("script#recording")?.textContent;
if (element !== null && data) {
  const state = new DebuggerState();
  state.open(JSON.parse(data) as Recording);
  element.replaceChildren();
  element.classList.add("recording-root");
  render(<RecordingPage state={state} />, element);
}
