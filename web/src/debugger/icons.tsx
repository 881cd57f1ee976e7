// Small drawings for buttons; each button has its own label.

const PATHS: Record<string, string> = {
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M3 3v10l6-5zM10.5 3h2v10h-2z",
  back: "M13 3v10L7 8zM3.5 3h2v10h-2z",
  first: "M13.5 3v10L8 8zM8 3v10L2.5 8zM1.5 3H3v10H1.5z",
  last: "M2.5 3v10L8 8zM8 3v10l5.5-5zM13 3h1.5v10H13z",
};

export function Icon({ name }: { name: string }) {
  return <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d={PATHS[name]} fill="currentColor" /></svg>;
}
