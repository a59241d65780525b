// The transcript: words that can be heard and doubted, and what adapting changed.

import { $, clock, make, percent } from "./dom.js";

const CONFIDENCE = [0.98, 0.95, 0.9, 0.8, 0.6, 0.4]; // lower bounds of the colours e0 … e5

const DOUBTFUL = ["e4", "e5", "e6"]; // a confidence below 0.8

export class Words {
  #player;
  #known = new Map(); // button -> what is known about its word
  #now = null;

  changed = 0; // places where adapting has changed the text

  constructor(player) {
    this.#player = player;
    $("answer").addEventListener("click", (event) => {
      const button = event.target.closest("button.word");
      if (button) this.#choose(button);
    });
    $("answer").addEventListener("keydown", (event) => this.#move(event));
  }

  clear() {
    $("answer").replaceChildren();
    $("source").replaceChildren();
    $("source-part").hidden = true;
    this.#known.clear();
    this.#now = null;
    this.changed = 0;
  }

  /** The source model's text, which stands until the answer is known. */
  draft(event) {
    const shown = event.tokens.flatMap(({ text, level }) => {
      const word = text.trimStart();
      return [text.slice(0, text.length - word.length), make("span", { className: `word ${level}`, textContent: word })];
    });
    if (event.speech) $("answer").append(make("p", { className: "words draft" }, ...shown));
  }

  /** The answer of a window, in place of its draft. */
  add(event) {
    $("answer").querySelector(".draft")?.remove();
    const stamp = () => make("span", { className: "stamp", textContent: clock(event.start) });
    const answer = make("p", { className: "words" }, stamp());
    const source = make("p", { className: "words" }, stamp());
    for (const part of event.changes) {
      const words = part.words.map((word) => this.#word(word, part.changed ? part.source.trim() : ""));
      const marked = part.changed && words.length ? make("ins") : null;
      if (marked) answer.append(words[0].gap, marked);
      words.forEach((button, i) => (marked ?? answer).append(marked && !i ? "" : button.gap, button));
      source.append(part.changed && part.source ? make("del", { textContent: part.source.trim() }) : part.source, " ");
    }
    if (!event.changes.length || event.answer === "silence")
      answer.append(make("em", { className: "facts", textContent: "no speech" }));
    const notes = [];
    if (event.guard) notes.push(make("p", { className: "note", textContent: `Guard: ${event.guard}; the source model's text is kept.` }));
    $("answer").append(answer, ...notes);
    $("source").append(source);
    this.changed += event.changes.filter((part) => part.changed).length;
    $("source-part").hidden = !this.changed;
    $("result").classList.toggle("several", $("answer").querySelectorAll(".words").length > 1);
    const first = $("answer").querySelector("button.word");
    if (first && !$("answer").querySelector('button[tabindex="0"]')) first.tabIndex = 0;
    $("said").textContent = answer.textContent.replace(/^\d+:\d\d/, "");
  }

  /** Marks the word that is heard at a time. */
  follow(time) {
    const heard = [...this.#known].find(([, word]) => word.start <= time && time < word.end)?.[0] ?? null;
    if (heard === this.#now) return;
    this.#now?.classList.remove("now");
    heard?.classList.add("now");
    this.#now = heard;
  }

  #word(word, was) {
    const text = word.word.trim();
    const button = make("button", { type: "button", className: `word ${levelOfWord(word)}`, textContent: text, tabIndex: -1 });
    button.gap = word.word.startsWith(" ") ? " " : "";
    button.setAttribute("aria-haspopup", "dialog");
    if (DOUBTFUL.includes(button.classList[1])) button.setAttribute("aria-description", "in doubt"); // who cannot see the colour
    this.#known.set(button, { ...word, text, was });
    return button;
  }

  #choose(button) {
    const word = this.#known.get(button);
    this.#focus(button);
    this.#show(button, word);
    if (word.start === undefined) return;
    this.#player.play(word.start, word.end).then((played) => {
      if (!played) $("word-card").append(make("p", { className: "facts", textContent: "This browser cannot play the recording." }));
    });
  }

  #show(button, word) {
    const card = $("word-card");
    if (card.matches(":popover-open")) card.hidePopover();
    const facts = [
      Number.isFinite(word.confidence) ? `confidence ${percent(word.confidence)}` : "",
      Number.isFinite(word.probability) ? `probability ${percent(word.probability)}` : "",
      Number.isFinite(word.entropy) ? `entropy ${word.entropy.toFixed(2)} nats` : "",
      word.start !== undefined ? `${word.start.toFixed(2)} – ${word.end.toFixed(2)} s` : "",
    ];
    const others = (word.alternatives ?? []).map(({ word: text, probability }) => {
      const share = make("i");
      share.style.width = `${Math.max(2, 100 * probability)}%`;
      return make("li", {}, make("b", { textContent: text || "(nothing)" }), make("span", { textContent: percent(probability) }), share);
    });
    card.replaceChildren(
      make("p", { className: "chosen", textContent: word.text }),
      make("p", { className: "facts", textContent: facts.filter(Boolean).join(" · ") }),
      ...(word.was ? [make("p", { className: "facts" }, "before adapting: ", make("del", { textContent: word.was }))] : []),
      others.length
        ? make("ul", { className: "others", ariaLabel: "What other hypotheses say here" }, ...others)
        : make("p", { className: "facts", textContent: "No other hypothesis says anything else here." }),
    );
    card.showPopover();
    // The focus stays on the word, so that a screen reader would not find the card by itself.
    $("said").textContent = [...card.querySelectorAll("p, li")].map((line) => spoken(line)).join(", ");
    const at = button.getBoundingClientRect();
    const { width, height } = card.getBoundingClientRect();
    const below = at.bottom + 8 + height < innerHeight;
    card.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
    card.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  }

  /** One word can be reached by Tab; arrow keys go on from there. */
  #move(event) {
    const buttons = [...this.#known.keys()];
    const i = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (i < 0 || to === undefined || !buttons[to]) return;
    event.preventDefault();
    this.#focus(buttons[to]);
  }

  #focus(button) {
    for (const other of this.#known.keys()) other.tabIndex = other === button ? 0 : -1;
    button.focus();
  }
}

/** The text of a line of the card, with a space between its parts. */
function spoken(line) {
  return [...line.childNodes].map((part) => part.textContent).filter(Boolean).join(" ");
}

function levelOfWord(word) {
  if (!Number.isFinite(word.confidence)) return word.level;
  const i = CONFIDENCE.findIndex((bound) => word.confidence >= bound);
  return `e${i < 0 ? CONFIDENCE.length : i}`;
}
