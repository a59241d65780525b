// The microphone, and a picture of how loud it is.

const TYPES = ["audio/webm;codecs=opus", "audio/ogg;codecs=opus", "audio/mp4"];
const BAR = 4; // px of the canvas

/** Why this browser cannot record here, or nothing. */
export function whyNot() {
  if (!window.isSecureContext) return "The microphone needs https, or this page from localhost.";
  if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) return "This browser cannot record.";
  return "";
}

export class Recorder {
  #recorder = null;
  #stream = null;
  #context = null;
  #frame = 0;

  /** Begins to record; `onTick` is called with the seconds so far. */
  async start(canvas, onTick) {
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const type = TYPES.find((one) => MediaRecorder.isTypeSupported(one));
    this.#recorder = new MediaRecorder(this.#stream, type ? { mimeType: type } : {});
    this.#recorder.start();
    this.#watch(canvas, onTick);
  }

  get recording() {
    return this.#recorder !== null;
  }

  /** Ends the recording: a blob, and a name for it. */
  async stop() {
    const recorder = this.#recorder;
    const chunk = await new Promise((resolve) => {
      recorder.ondataavailable = (event) => resolve(event.data);
      recorder.stop();
    });
    cancelAnimationFrame(this.#frame);
    for (const track of this.#stream.getTracks()) track.stop();
    this.#context.close();
    this.#recorder = null;
    const type = recorder.mimeType.split(";")[0];
    return { blob: new Blob([chunk], { type }), name: `recording.${type.split("/")[1] || "webm"}` };
  }

  #watch(canvas, onTick) {
    this.#context = new AudioContext();
    const analyser = new AnalyserNode(this.#context, { fftSize: 2048 });
    this.#context.createMediaStreamSource(this.#stream).connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    const begin = performance.now();
    const levels = [];
    const draw = (now) => {
      analyser.getFloatTimeDomainData(samples);
      levels.push(Math.max(...samples.map(Math.abs)));
      const most = Math.floor(canvas.width / BAR);
      if (levels.length > most) levels.splice(0, levels.length - most);
      paint(canvas, levels);
      onTick((now - begin) / 1000);
      this.#frame = requestAnimationFrame(draw);
    };
    this.#frame = requestAnimationFrame(draw);
  }
}

function paint(canvas, levels) {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = getComputedStyle(canvas).color;
  const left = canvas.width - levels.length * BAR;
  levels.forEach((level, i) => {
    const height = Math.max(2, Math.min(1, Math.sqrt(level)) * canvas.height);
    context.fillRect(left + i * BAR, (canvas.height - height) / 2, BAR - 1, height);
  });
}
