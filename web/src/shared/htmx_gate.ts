// Only elements that the server wrote for this response may use htmx: each has the response's nonce in hx-nonce.
//
// htmx's own extension strips the attributes of any other element before htmx reads them, so that HTML which someone
// brings into a page sends no request in the name of its reader. It sees elements with an action of htmx; a stream of
// events (hx-sse:connect) is started by another extension, and the gate below is for these.

import htmx from "htmx.org";
import "htmx.org/dist/ext/hx-csp.js";

const STREAMS = ["hx-sse:connect", "data-hx-sse:connect", "sse-connect"];
const selector = STREAMS.map((name) => `[${CSS.escape(name)}]`).join(",");

htmx.registerExtension("stream-nonce", {
  htmx_before_process: (root: Element) => {
    const nonce = document.querySelector<HTMLScriptElement>("script[nonce]")?.nonce;
    const elements = [root, ...root.querySelectorAll(selector)];
    for (const element of elements) {
      if (nonce && element.getAttribute("hx-nonce") === nonce) continue;
      for (const name of STREAMS) element.removeAttribute(name);
    }
  },
});
