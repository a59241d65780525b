// The server: what it is, and a recording's transcript as a stream of events.

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const headers = (key) => (key ? { authorization: `Bearer ${key}` } : {});

/** The model that the server has, with its limits and languages. */
export async function about(key) {
  const response = await reach("v1/models", { headers: headers(key) });
  return (await response.json()).data[0];
}

/** The events of a transcription, as they arrive. */
export async function* transcribe(recording, settings, key, signal) {
  const form = new FormData();
  form.append("file", recording.blob, recording.name);
  const wanted = { stream: "true", explain: "true", response_format: "verbose_json", ...settings };
  for (const [name, value] of Object.entries(wanted)) if (value) form.append(name, value);
  for (const kind of ["word", "segment"]) form.append("timestamp_granularities[]", kind);
  const response = await reach("v1/audio/transcriptions", { method: "POST", body: form, headers: headers(key), signal });
  for await (const data of serverSentEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(event.error.message, 500);
    yield event;
  }
  throw new ServerError("The connection ended before the transcript was complete.");
}

async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
  }
}

async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached, or it closed the connection. Is it still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  const wait = response.headers.get("retry-after");
  const message = said?.error?.message ?? `The server answered ${response.status} ${response.statusText}.`;
  throw new ServerError(wait ? `${message} (in ${wait} s)` : message, response.status);
}
