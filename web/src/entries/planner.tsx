// The planner takes the place of the form and the plan that the server rendered.

import { render } from "preact";
import type { PlanView, PlannerChoices } from "../planner/plan_view.ts";
import { Planner } from "../planner/planner.tsx";

const root = document.querySelector<HTMLElement>("#planner")!;
const { choices, plan } = JSON.parse(root.dataset.planner!) as { choices: PlannerChoices; plan: PlanView | null };
root.replaceChildren();
render(<Planner choices={choices} firstPlan={plan} />, root);
