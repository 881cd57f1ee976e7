// The layout explorer takes the place of the form that the server rendered.

import { render } from "preact";
import { Explorer } from "../explorer/explorer.tsx";

const root = document.querySelector("#explorer")!;
root.replaceChildren();
render(<Explorer />, root);
