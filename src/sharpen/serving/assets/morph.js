// One tree becomes the next: branches that both have move, the others come and go.

import { parseSvg, still } from "./dom.js";

const TIMING = { duration: 700, easing: "cubic-bezier(.3, 0, .2, 1)" };

/** Shows a drawing in the box, in place of the one that is there. */
export function morph(box, markup) {
  const old = new Map();
  for (const path of box.querySelectorAll("path[data-key]")) old.set(path.dataset.key, pose(path));
  const next = parseSvg(markup);
  box.replaceChildren(next);
  if (!old.size || still.matches || !next.animate) return;
  for (const path of next.querySelectorAll("path[data-key]")) {
    const before = old.get(path.dataset.key);
    path.animate(before ? [before, pose(path)] : [{ opacity: 0, strokeWidth: "0px" }, {}], TIMING);
  }
  for (const rest of next.querySelectorAll("text, circle"))
    rest.animate([{ opacity: 0 }, { opacity: 0, offset: 0.4 }, { opacity: 1 }], TIMING);
}

function pose(path) {
  const style = getComputedStyle(path);
  return { d: `path("${bent(path.getAttribute("d"))}")`, stroke: style.stroke, strokeWidth: style.strokeWidth };
}

/** A straight branch, written as a bent one: only then can it become one. */
function bent(d) {
  const straight = /^M(\S+) (\S+)H(\S+)$/.exec(d);
  if (!straight) return d;
  const [, x, y, end] = straight;
  return `M${x} ${y}C${x} ${y} ${x} ${y} ${x} ${y}H${end}`;
}
