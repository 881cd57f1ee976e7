// The time axis of the timeline.

export interface TimeScale {
  start: number;
  end: number;
  width: number;
}

export function timeToX(scale: TimeScale, seconds: number): number {
  const span = scale.end - scale.start;
  return span > 0 ? ((seconds - scale.start) / span) * scale.width : 0;
}

export function xToTime(scale: TimeScale, x: number): number {
  return scale.width > 0 ? scale.start + (x / scale.width) * (scale.end - scale.start) : scale.start;
}

/** Zoom about a point in time; the result stays within 0 and total, and never gets thinner than a millionth of it. */
export function zoomScale(scale: TimeScale, factor: number, center: number, total: number): TimeScale {
  const span = Math.min(total, Math.max(total * 1e-6, (scale.end - scale.start) / factor));
  const fraction = scale.end > scale.start ? (center - scale.start) / (scale.end - scale.start) : 0.5;
  const start = Math.min(Math.max(0, center - span * fraction), total - span);
  return { start, end: start + span, width: scale.width };
}

/** Round times for ticks: 1, 2 or 5 times a power of ten, at most `count` of them. */
export function timeTicks(scale: TimeScale, count: number): number[] {
  const span = scale.end - scale.start;
  if (span <= 0 || count < 1) return [];
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? rough;
  const ticks: number[] = [];
  for (let index = Math.ceil(scale.start / step - 1e-9); index * step <= scale.end * (1 + 1e-9); index += 1) {
    ticks.push(index * step + 0); // + 0: no negative zero
  }
  return ticks;
}
