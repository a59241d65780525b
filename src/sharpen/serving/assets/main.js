// The page: a recording goes to the server, and what happens to it is shown as it happens.

import { about, ServerError, transcribe } from "./api.js";
import { $, clock, make } from "./dom.js";
import { Live } from "./live.js";
import { Player } from "./player.js";
import { Recorder, whyNot } from "./recorder.js";
import { Words } from "./words.js";

const HINTS = {
  plain: "One beam search. Nothing adapts: the fastest.",
  normal: "Where the search leaves the model in doubt, it adapts by one large update.",
  high: "Where the model is in doubt, it adapts by four updates, with sixteen hypotheses.",
  paper: "Ten updates in every part, sure or not, with the paper's settings: slow.",
};
const FILES = { txt: "text/plain", srt: "application/x-subrip", vtt: "text/vtt", json: "application/json" };

const live = new Live();
const player = new Player($("audio"), (time) => words.follow(time));
const words = new Words(player);
const recorder = new Recorder();
let model = null; // what the server has
let recording = null; // the last one: {blob, name}
let running = null; // an AbortController while the server works
let links = []; // to the files that can be saved

const key = () => $("key").value.trim();

async function greet() {
  try {
    model = await about(key());
  } catch (error) {
    $("model").textContent = "";
    fail(error);
    return false;
  }
  $("model").textContent = `${model.id} is ready`;
  $("key-field").hidden = true;
  $("error").hidden = true;
  const effort = $("effort").querySelector(`input[value="${model.sharpen.effort}"]`);
  if (effort) effort.checked = true;
  hint();
  const names = new Intl.DisplayNames([document.documentElement.lang], { type: "language", fallback: "code" });
  const codes = model.sharpen.languages.map((code) => ({ code, name: names.of(code) }));
  codes.sort((a, b) => a.name.localeCompare(b.name));
  const only = codes.length === 1;
  $("language").replaceChildren(
    ...(only ? [] : [make("option", { value: "", textContent: "detect" })]),
    ...codes.map(({ code, name }) => make("option", { value: code, textContent: name })),
  );
  return true;
}

function hint() {
  $("effort-hint").textContent = HINTS[new FormData($("settings")).get("effort")];
}

function fail(error) {
  const message = (error.message || String(error)).replace(/^file: /, ""); // what else could be wrong is not on this page
  if (error.status === 401) {
    $("key-field").hidden = false;
    $("key").focus();
    $("error").textContent = key() ? "The server does not accept this API key." : "This server asks for an API key.";
  } else {
    $("error").textContent = message.charAt(0).toUpperCase() + message.slice(1) + (/[.!?)]$/.test(message) ? "" : ".");
  }
  $("error").hidden = false;
}

/** Why the server would refuse the recording, or nothing. */
function tooMuch({ blob }) {
  const most = model?.sharpen.max_upload;
  const size = blob.size / 2 ** 20;
  if (!blob.size) return "The recording is empty.";
  return most && size > 0.99 * most ? `The recording has ${size.toFixed(1)} MB; this server takes up to ${most} MB.` : "";
}

async function begin(given) {
  running?.abort();
  recording = given;
  $("error").hidden = true;
  $("result").hidden = true;
  live.clear();
  words.clear();
  const why = tooMuch(given);
  if (why) return fail(new ServerError(why));
  if (!model && !(await greet())) return;
  const mine = (running = new AbortController());
  prepare(given);
  const started = performance.now();
  try {
    const { effort, language } = Object.fromEntries(new FormData($("settings")));
    const settings = { model: model.id, effort, language };
    for await (const event of transcribe(given, settings, key(), mine.signal)) show(event, started);
  } catch (error) {
    if (mine !== running) return; // another recording has taken its place
    if (error.name === "AbortError") status("Stopped.");
    else {
      status("It did not work.");
      if (!$("answer").hasChildNodes()) $("result").hidden = true;
      fail(error);
    }
  }
  if (mine !== running) return;
  running = null;
  $("bar").hidden = $("cancel").hidden = true;
  $("again").hidden = false;
}

function prepare({ blob, name }) {
  $("name").textContent = name;
  for (const id of ["again", "legend", "hint", "downloads"]) $(id).hidden = true;
  for (const id of ["result", "cancel", "bar"]) $(id).hidden = false;
  for (const link of links) URL.revokeObjectURL(link);
  links = [];
  $("answer-title").textContent = "Transcript";
  $("said").textContent = "";
  player.load(blob);
  progress(null);
  status("Sending the recording …");
  $("name").focus({ preventScroll: true });
  $("result").scrollIntoView({ block: "nearest" });
}

function status(text) {
  $("status").textContent = text;
}

/** The share that is done; null: nobody knows. */
function progress(share) {
  $("bar").classList.toggle("unknown", share === null);
  $("bar").firstElementChild.style.width = share === null ? "" : `${100 * share}%`;
  if (share === null) $("bar").removeAttribute("aria-valuenow");
  else $("bar").setAttribute("aria-valuenow", Math.round(100 * share));
}

function show(event, started) {
  const handlers = {
    "sharpen.source": () => {
      status(`The source model has read ${clock(event.start)} to ${clock(event.start + event.seconds)}. Is it sure?`);
      live.source(event);
      words.draft(event);
    },
    "sharpen.step": () => {
      status(`Adapting: update ${event.step} of ${event.of}`);
      progress(event.step / (event.of + 1));
      live.step(event);
    },
    "sharpen.answer": () => {
      live.answer(event);
      words.add(event);
      $("legend").hidden = $("hint").hidden = false;
      $("marks").hidden = !words.changed;
      progress(null);
    },
    "transcript.text.done": () => {
      offer(event.files);
      finish(event, (performance.now() - started) / 1000);
    },
  };
  handlers[event.type]?.();
}

function finish(event, seconds) {
  const { steps, answer, effort, complete } = event.adaptation;
  const changed = words.changed;
  $("answer-title").textContent = answer === "adapted" ? "The adapted model says" : "Transcript";
  const facts = [
    `${event.duration.toFixed(1)} s of audio in ${seconds.toFixed(1)} s`,
    `effort ${effort}`,
    steps ? `${steps} update${steps === 1 ? "" : "s"}` : "nothing adapted",
    steps ? (changed ? `${changed} place${changed === 1 ? "" : "s"} changed` : "no word changed") : "",
    complete ? "" : "not all of it: the time was up",
  ];
  if (!event.text) facts.push("no speech found");
  status(facts.filter(Boolean).join(" · "));
}

function offer(files) {
  const stem = recording.name.replace(/\.[^.]*$/, "") || "transcript";
  $("downloads").replaceChildren(make("span", { textContent: "Download" }));
  for (const [kind, type] of Object.entries(FILES)) {
    const href = URL.createObjectURL(new Blob([files[kind]], { type: `${type};charset=utf-8` }));
    links.push(href);
    $("downloads").append(make("a", { href, download: `${stem}.${kind}`, textContent: kind }));
  }
  $("downloads").hidden = false;
}

async function toggleRecording() {
  const button = $("record");
  try {
    if (recorder.recording) {
      begin(await recorder.stop());
    } else {
      $("error").hidden = true;
      await recorder.start($("level"), (seconds) => ($("clock").textContent = `recording · ${clock(seconds)}`));
    }
  } catch (error) {
    fail(new Error(error.name === "NotAllowedError" ? "The browser was not allowed to use the microphone." : `The microphone does not work: ${error.message}`));
  }
  button.classList.toggle("on", recorder.recording);
  button.lastElementChild.textContent = recorder.recording ? "Stop and transcribe" : "Record";
  $("level").hidden = !recorder.recording;
  if (!recorder.recording) $("clock").textContent = "with your microphone; nothing is kept";
}

function listen() {
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    if (file) begin({ blob: file, name: file.name });
    $("file").value = ""; // the same file can be chosen again
  });
  let depth = 0;
  const over = (by) => {
    depth = by ? depth + by : 0;
    document.body.classList.toggle("dropping", depth > 0);
  };
  addEventListener("dragenter", () => over(1));
  addEventListener("dragleave", () => over(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(0);
    const [file] = event.dataTransfer.files;
    if (file) begin({ blob: file, name: file.name });
    else fail(new Error("That was not a file."));
  });
  $("record").addEventListener("click", toggleRecording);
  const why = whyNot();
  if (why) {
    $("record").disabled = true;
    $("clock").textContent = why;
  }
  $("effort").addEventListener("change", hint);
  $("cancel").addEventListener("click", () => running?.abort());
  $("again").addEventListener("click", () => begin(recording));
  $("settings").addEventListener("submit", async (event) => {
    event.preventDefault();
    if ((await greet()) && recording) begin(recording);
  });
}

listen();
hint();
greet();
