// How the model makes up its mind: the entropy curve and the hypothesis tree, step by step, for each part of a recording.

import { $, clock, make, parseSvg } from "./dom.js";
import { morph } from "./morph.js";

export class Live {
  #parts = []; // of the recording: {start, end, frames, facts}
  #shown = null;
  #followed = true; // whether new frames are shown as they come
  #tallest = 0;

  constructor() {
    $("frames").addEventListener("change", (event) => {
      const i = Number(event.target.value);
      this.#followed = i === this.#shown.frames.length - 1;
      this.#draw(i);
    });
    $("window").addEventListener("change", (event) => {
      this.#followed = Number(event.target.value) === this.#parts.length - 1;
      this.#open(this.#parts[Number(event.target.value)]);
    });
  }

  clear() {
    this.#parts = [];
    this.#shown = null;
    this.#followed = true;
    $("live").hidden = $("window-field").hidden = true;
    $("window").replaceChildren();
  }

  source(event) {
    const part = { start: event.start, end: event.start + event.seconds, frames: [], facts: "" };
    this.#parts.push(part);
    const label = `${clock(part.start)} – ${clock(part.end)}`;
    $("window").append(make("option", { value: this.#parts.length - 1, textContent: label }));
    $("window-field").hidden = this.#parts.length < 2;
    $("live").hidden = false;
    if (this.#followed || !this.#shown) this.#open(part);
    this.#add(part, event, "source");
  }

  step(event) {
    this.#add(this.#parts.at(-1), event, `${event.step - 1}`); // what is drawn was there before the update
  }

  answer(event) {
    const part = this.#parts.at(-1);
    if (!part) return;
    this.#add(part, event, "adapted");
    const updates = `${event.steps} update${event.steps === 1 ? "" : "s"}`;
    const taken = { adapted: "the adapted model's text stands", source: "the source model's text stands", silence: "no speech" };
    part.facts = [updates, event.stopped, taken[event.answer]].filter(Boolean).join(" · ");
    if (part === this.#shown) $("live-facts").textContent = part.facts;
  }

  #add(part, event, label) {
    if (!event.drawing) return;
    const { title, drawing, reading } = event;
    part.frames.push({ label, title, drawing, reading, curve: event.curve ?? part.frames.at(-1)?.curve });
    if (part !== this.#shown) return;
    this.#choice(part.frames.length - 1);
    this.#read(part.frames.length - 1);
    if (this.#followed) this.#draw(part.frames.length - 1);
  }

  #open(part) {
    this.#shown = part;
    this.#tallest = 0;
    $("window").value = this.#parts.indexOf(part);
    $("live-facts").textContent = part.facts;
    $("frames").replaceChildren($("frames").querySelector("legend"));
    $("readings").replaceChildren();
    $("tree").replaceChildren();
    $("curve").replaceChildren();
    $("curve-hint").hidden = false;
    $("frames").hidden = true;
    part.frames.forEach((_, i) => {
      this.#choice(i);
      this.#read(i);
    });
    if (part.frames.length) this.#draw(part.frames.length - 1);
  }

  #choice(i) {
    const input = make("input", { type: "radio", name: "frame", value: i });
    $("frames").append(make("label", {}, input, make("span", { textContent: this.#shown.frames[i].label })));
    $("frames").hidden = i === 0;
  }

  #draw(i) {
    const frame = this.#shown.frames[i];
    const choice = $("frames").querySelector(`input[value="${i}"]`);
    choice.checked = true;
    choice.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
    $("tree-title").textContent = frame.title;
    morph($("tree"), frame.drawing);
    this.#tallest = Math.max(this.#tallest, $("tree").querySelector("svg").height.baseVal.value);
    $("tree").style.minHeight = `${this.#tallest + 16}px`; // what is below stays where it is
    $("curve-hint").hidden = Boolean(frame.curve);
    if (frame.curve) $("curve").replaceChildren(parseSvg(frame.curve));
    else $("curve").replaceChildren();
  }

  /** The most probable text of a frame, where it is another one than before. */
  #read(i) {
    const { label, reading } = this.#shown.frames[i];
    if (i > 0 && !reading.some((part) => part.changed)) return;
    const text = reading.flatMap(({ before, after, changed }) => {
      if (!changed || i === 0) return [after];
      return [" ", make(after ? "mark" : "del", { textContent: (after || before).trim() }), " "];
    });
    $("readings").append(make("dt", { textContent: label }), make("dd", {}, ...text));
  }
}
