// Short names for what every part of the page does with elements.

export const $ = (id) => document.getElementById(id);

export const still = matchMedia("(prefers-reduced-motion: reduce)");

/** An element with properties and children; a child may be text. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** The SVG element in markup that the server drew. */
export function parseSvg(markup) {
  return document.importNode(new DOMParser().parseFromString(markup, "text/html").querySelector("svg"), true);
}

export function percent(probability) {
  const p = 100 * probability;
  return p >= 9.5 ? `${p.toFixed(0)} %` : p >= 1e-4 ? `${Number(p.toPrecision(1))} %` : "< 0.0001 %";
}

/** Seconds as m:ss. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
