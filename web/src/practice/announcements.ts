// Says the progress of a judgement to screen readers.
//
// Each event replaces the result, and a status that is inserted together with its text is often not read. So the text
// goes into an element that stays, and only when it changed: "Judging" once, not once per case.

export function enableAnnouncements(): void {
  const announcer = document.querySelector<HTMLElement>("#result-announcement");
  if (!announcer) return;
  let lastText = resultText(document);
  document.addEventListener("htmx:after:swap", () => {
    const text = resultText(document);
    if (text === lastText) return;
    lastText = text;
    announcer.textContent = text;
  });
}

/** The headline of the result and its sentence. */
export function resultText(root: ParentNode): string {
  const texts = [...root.querySelectorAll(".verdict-head h2, .verdict-head .sentence")].map((element) => element.textContent ?? "");
  return texts.map((text) => text.replace(/\s+/g, " ").trim()).filter(Boolean).join(". ");
}
