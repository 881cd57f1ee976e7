// Marks on lines from a recording: the current step with JAX's type beside it, its callers, and collectives in the gutter.

import { RangeSetBuilder, StateEffect, StateField, type EditorState, type Extension } from "@codemirror/state";
import { Decoration, EditorView, gutter, GutterMarker, WidgetType, type DecorationSet } from "@codemirror/view";

export interface LineMarks {
  /** 1-based; 0 for none. */
  current: number;
  callers: number[];
  selected: number;
  name: string | null;
  type: string | null;
  isBad: boolean;
  /** Color of the mark of each line with a collective. */
  collectives: Map<number, { color: string; label: string }>;
}

export const NO_MARKS: LineMarks = { current: 0, callers: [], selected: 0, name: null, type: null, isBad: false, collectives: new Map() };

export const setLineMarks = StateEffect.define<LineMarks>();

const marksField = StateField.define<LineMarks>({
  create: () => NO_MARKS,
  update: (marks, transaction) => transaction.effects.reduce((latest, effect) => (effect.is(setLineMarks) ? effect.value : latest), marks),
  provide: (field) => EditorView.decorations.compute([field, "doc"], (state) => decorate(state, state.field(field))),
});

class TypeWidget extends WidgetType {
  constructor(private readonly name: string | null, private readonly type: string, private readonly isBad: boolean) {
    super();
  }

  override eq(other: TypeWidget): boolean {
    return other.name === this.name && other.type === this.type && other.isBad === this.isBad;
  }

  override toDOM(): HTMLElement {
    const element = document.createElement("span");
    element.className = this.isBad ? "cm-lineType is-bad" : "cm-lineType";
    if (this.name !== null) {
      const name = document.createElement("b");
      name.textContent = `${this.name}: `;
      element.append(name);
    }
    element.append(this.type);
    return element;
  }
}

function decorate(state: EditorState, marks: LineMarks): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  const classes = new Map<number, string[]>();
  const add = (line: number, name: string) => {
    if (line >= 1 && line <= state.doc.lines) classes.set(line, [...(classes.get(line) ?? []), name]);
  };
  add(marks.current, "cm-currentStep");
  for (const line of marks.callers) if (line !== marks.current) add(line, "cm-callerStep");
  if (marks.selected !== marks.current) add(marks.selected, "cm-selectedStep");
  for (const number of [...classes.keys()].sort((first, second) => first - second)) {
    const line = state.doc.line(number);
    builder.add(line.from, line.from, Decoration.line({ class: classes.get(number)!.join(" ") }));
    if (number === marks.current && marks.type !== null) {
      builder.add(line.to, line.to, Decoration.widget({ widget: new TypeWidget(marks.name, marks.type, marks.isBad), side: 1 }));
    }
  }
  return builder.finish();
}

class CollectiveMarker extends GutterMarker {
  constructor(private readonly color: string, private readonly label: string) {
    super();
  }

  override eq(other: CollectiveMarker): boolean {
    return other.color === this.color && other.label === this.label;
  }

  override toDOM(): HTMLElement {
    const element = document.createElement("span");
    element.className = "cm-collectiveMark";
    element.style.background = this.color;
    element.title = this.label;
    return element;
  }
}

export function lineMarkers(onSelectLine: (line: number) => void): Extension {
  const click = (view: EditorView, block: { from: number }) => {
    onSelectLine(view.state.doc.lineAt(block.from).number);
    return true;
  };
  return [
    marksField,
    gutter({
      class: "cm-costGutter",
      lineMarker: (view, block) => {
        const mark = view.state.field(marksField).collectives.get(view.state.doc.lineAt(block.from).number);
        return mark === undefined ? null : new CollectiveMarker(mark.color, mark.label);
      },
      lineMarkerChange: (update) => update.transactions.some((transaction) => transaction.effects.some((effect) => effect.is(setLineMarks))),
      initialSpacer: () => new CollectiveMarker("transparent", ""),
      domEventHandlers: { click },
    }),
  ];
}
