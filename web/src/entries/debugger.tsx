// The page /lab.

import { render } from "preact";
import { Lab } from "../debugger/lab.tsx";
import { LabState } from "../debugger/lab_state.ts";

const element = document.querySelector<HTMLElement>("#debugger");
if (element !== null) {
  const lab = new LabState((element.dataset.chips ?? "").split(",").filter(Boolean));
  element.replaceChildren();
  render(<Lab lab={lab} />, element);
  void lab.start(new URLSearchParams(location.search));
}
