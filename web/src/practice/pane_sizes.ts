// Panes that a person resizes with the pointer or the arrow keys. Sizes are remembered in this browser.

interface SplitterOptions {
  splitter: HTMLElement;
  container: HTMLElement;
  /** CSS variables of the sizes before and after the splitter. */
  variables: [string, string];
  storageKey: string;
}

const STEP_PERCENT = 2;

/** The size before a splitter in percent, within the limits that the splitter declares. */
export function clampPercent(percent: number, minimum: number, maximum: number): number {
  return Math.min(maximum, Math.max(minimum, Math.round(percent * 10) / 10));
}

export function enableSplitter(options: SplitterOptions): void {
  const { splitter, container, variables, storageKey } = options;
  const isVertical = splitter.getAttribute("aria-orientation") === "vertical";
  const minimum = Number(splitter.getAttribute("aria-valuemin"));
  const maximum = Number(splitter.getAttribute("aria-valuemax"));

  function setPercent(percent: number): void {
    const size = clampPercent(percent, minimum, maximum);
    container.style.setProperty(variables[0], `${size}fr`);
    container.style.setProperty(variables[1], `${100 - size}fr`);
    splitter.setAttribute("aria-valuenow", String(Math.round(size)));
    localStorage.setItem(storageKey, String(size));
  }

  const stored = Number(localStorage.getItem(storageKey));
  if (stored >= minimum && stored <= maximum) setPercent(stored);

  splitter.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    splitter.setPointerCapture(event.pointerId);
    const bounds = container.getBoundingClientRect();
    const move = (moved: PointerEvent) => {
      const position = isVertical ? (moved.clientX - bounds.left) / bounds.width : (moved.clientY - bounds.top) / bounds.height;
      setPercent(position * 100);
    };
    splitter.addEventListener("pointermove", move);
    splitter.addEventListener("lostpointercapture", () => splitter.removeEventListener("pointermove", move), { once: true });
  });

  splitter.addEventListener("keydown", (event) => {
    const [less, more] = isVertical ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
    const current = Number(splitter.getAttribute("aria-valuenow"));
    const target = { [less as string]: current - STEP_PERCENT, [more as string]: current + STEP_PERCENT, Home: minimum, End: maximum }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    setPercent(target);
  });
}
