// The offline page of one recording; the recording is in the element #recording.

import type { Recording } from "../shared/recording.ts";

const element = document.querySelector("#recording");
const recording = JSON.parse(element?.textContent ?? "null") as Recording;
document.title = recording.title;
