// The board: mesh axes as chips in the slots of array dimensions. Chips are dragged with mouse, pen or finger, or moved
// with the arrow keys. The layout follows while one drags.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Layout, Mesh, Spec } from "../shared/mesh.ts";
import { withCommas } from "../shared/python_text.ts";
import { axisNameColor } from "./scene.ts";
import { moveAxis } from "./state.ts";

interface Properties {
  readonly name: string;
  readonly mesh: Mesh;
  readonly shape: Layout["shape"];
  readonly spec: Spec;
  readonly dark: boolean;
  readonly onChange: (spec: Spec) => void;
}

interface Drag {
  readonly axis: string;
  readonly pointer: number;
  readonly startX: number;
  readonly startY: number;
  readonly before: Spec;
  hasMoved: boolean;
}

export function SpecBoard({ name, mesh, shape, spec, dark, onChange }: Properties) {
  const keysId = `${name.replaceAll(" ", "-")}-keys`;
  const board = useRef<HTMLDivElement>(null);
  const drag = useRef<Drag | null>(null);
  const ghost = useRef<HTMLDivElement>(null);
  const [dragged, setDragged] = useState<string | null>(null);
  const focusAfterMove = useRef<string | null>(null);
  const current = useRef({ spec, onChange });
  current.current = { spec, onChange };

  useEffect(() => {
    // A chip that moved to another slot is another element: focus follows it.
    if (focusAfterMove.current === null) return;
    const chips = board.current!.querySelectorAll<HTMLElement>("[data-axis]");
    [...chips].find((chip) => chip.dataset.axis === focusAfterMove.current)?.focus();
    focusAfterMove.current = null;
  });

  const free = mesh.names.filter((axis) => !spec.meshAxes.includes(axis));
  const start = (event: PointerEvent, axis: string) => {
    if (event.button !== 0) return;
    board.current!.setPointerCapture(event.pointerId);
    drag.current = { axis, pointer: event.pointerId, startX: event.clientX, startY: event.clientY, before: spec, hasMoved: false };
  };
  const follow = (event: PointerEvent) => {
    const active = drag.current;
    if (!active || active.pointer !== event.pointerId) return;
    if (!active.hasMoved && Math.hypot(event.clientX - active.startX, event.clientY - active.startY) < 4) return;
    if (!active.hasMoved) {
      active.hasMoved = true;
      setDragged(active.axis);
    }
    if (ghost.current) ghost.current.style.transform = `translate(${event.clientX}px, ${event.clientY}px)`;
    const place = dropPlace(board.current!, event.clientX, event.clientY, active.axis);
    if (!place) return;
    const moved = moveAxis(current.current.spec, shape.length, active.axis, place.dim, place.position);
    if (`${moved}` !== `${current.current.spec}`) current.current.onChange(moved);
  };
  const end = (event: PointerEvent, isCancelled: boolean) => {
    const active = drag.current;
    if (!active || active.pointer !== event.pointerId) return;
    drag.current = null;
    setDragged(null);
    if (isCancelled) onChange(active.before);
  };
  const press = (event: KeyboardEvent, axis: string) => {
    const moved = moveByKey(spec, shape.length, axis, event.key);
    if (!moved) return;
    event.preventDefault();
    focusAfterMove.current = axis;
    onChange(moved);
  };
  const chip = (axis: string, place: string) => (
    <button
      type="button"
      key={axis}
      class={`axis-chip${dragged === axis ? " dragged" : ""}`}
      data-axis={axis}
      title={`Drag ${axis} onto a dimension, or press an arrow key`}
      aria-label={`${axis} ${mesh.size(axis)}: mesh axis, ${place}`}
      aria-describedby={keysId}
      onPointerDown={(event) => start(event, axis)}
      onKeyDown={(event) => press(event, axis)}
    >
      <span class="swatch" style={{ background: axisNameColor(mesh, axis, dark) }} />
      <span class="chip-name">{axis}</span> <span class="chip-size">{mesh.size(axis)}</span>
    </button>
  );
  return (
    <div
      class="spec-board"
      ref={board}
      role="group"
      aria-label={`Mesh axes of ${name}`}
      onPointerMove={follow}
      onPointerUp={(event) => end(event, false)}
      onPointerCancel={(event) => end(event, true)}
    >
      <p id={keysId} class="visually-hidden">
        Arrow left and right move the axis to another dimension, arrow up and down change its order.
      </p>
      {shape.map((size, dim) => (
        <div class="slot" data-dim={dim} key={dim}>
          <span class="slot-name">
            dim {dim} <span class="muted">{withCommas(size)}</span>
          </span>
          <span class="slot-axes">
            {(spec.axes[dim] ?? []).filter((axis) => mesh.has(axis)).map((axis) => chip(axis, `shards dimension ${dim}`))}
            {!spec.axes[dim]?.length && <span class="slot-empty">not sharded</span>}
          </span>
        </div>
      ))}
      <div class="slot tray" data-dim="">
        <span class="slot-name">replicated over</span>
        <span class="slot-axes">
          {free.map((axis) => chip(axis, "shards no dimension"))}
          {free.length === 0 && <span class="slot-empty">no axis</span>}
        </span>
      </div>
      {dragged !== null && (
        <div class="drag-ghost axis-chip" ref={ghost} aria-hidden="true">
          <span class="swatch" style={{ background: axisNameColor(mesh, dragged, dark) }} />
          {dragged} <span class="chip-size">{mesh.size(dragged)}</span>
        </div>
      )}
    </div>
  );
}

/** The slot at a point, and the position among its chips. */
function dropPlace(board: HTMLElement, x: number, y: number, axis: string): { dim: number | null; position: number } | null {
  for (const slot of board.querySelectorAll<HTMLElement>(".slot")) {
    const box = slot.getBoundingClientRect();
    if (x < box.left || x > box.right || y < box.top || y > box.bottom) continue;
    if (slot.dataset.dim === "") return { dim: null, position: 0 };
    const others = [...slot.querySelectorAll<HTMLElement>("[data-axis]")].filter((chip) => chip.dataset.axis !== axis);
    const position = others.filter((chip) => {
      const chipBox = chip.getBoundingClientRect();
      return x > chipBox.left + chipBox.width / 2;
    }).length;
    return { dim: Number(slot.dataset.dim), position };
  }
  return null;
}

/** The spec after an arrow key on a chip; null if the key does nothing. */
export function moveByKey(spec: Spec, rank: number, axis: string, key: string): Spec | null {
  const dim = spec.axes.findIndex((names) => names.includes(axis));
  if (key === "ArrowUp" || key === "ArrowDown") {
    if (dim < 0) return null;
    const position = spec.axes[dim]!.indexOf(axis) + (key === "ArrowUp" ? -1 : 1);
    if (position < 0 || position >= spec.axes[dim]!.length) return null;
    return moveAxis(spec, rank, axis, dim, position);
  }
  if (key !== "ArrowLeft" && key !== "ArrowRight") return key === "Delete" && dim >= 0 ? moveAxis(spec, rank, axis, null) : null;
  if (rank === 0) return null;
  // The tray is before the first dimension and after the last one.
  const place = dim + (key === "ArrowRight" ? 1 : -1);
  const wrapped = place < -1 ? rank - 1 : place >= rank ? -1 : place;
  return moveAxis(spec, rank, axis, wrapped < 0 ? null : wrapped);
}
