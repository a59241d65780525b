// The recording, to be heard: as a whole, or one word of it.

const MARGIN = 0.06; // seconds around a word: its edges are not sharp

export class Player {
  #audio;
  #url = "";
  #until = Infinity;
  #ready = Promise.resolve();

  /** `onTime` is called with the time that is heard, or -1 where nothing is. */
  constructor(audio, onTime) {
    this.#audio = audio;
    const tick = () => {
      if (audio.currentTime >= this.#until) audio.pause();
      onTime(audio.paused ? -1 : audio.currentTime);
      if (!audio.paused) requestAnimationFrame(tick);
    };
    audio.addEventListener("play", tick);
    audio.addEventListener("pause", () => {
      this.#until = Infinity;
      onTime(-1);
    });
  }

  load(blob) {
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = URL.createObjectURL(blob);
    this.#until = Infinity;
    this.#audio.src = this.#url;
    this.#ready = this.#seekable();
    this.#ready.catch(() => {}); // who wants to hear it is told then
  }

  /** Plays from start to end; false where this browser cannot play the recording. */
  async play(start, end) {
    try {
      await this.#ready;
      this.#audio.pause();
      this.#audio.currentTime = Math.max(0, start - MARGIN);
      await this.#audio.play();
      this.#until = end + MARGIN;
      return true;
    } catch (error) {
      return error.name === "AbortError"; // another word was clicked meanwhile
    }
  }

  stop() {
    this.#audio.pause();
  }

  /** A recording of a microphone does not say how long it is: the browser finds out by going to its end. */
  async #seekable() {
    const audio = this.#audio;
    await happens(audio, "loadedmetadata");
    if (audio.duration !== Infinity) return;
    audio.currentTime = 1e9;
    await happens(audio, "durationchange");
    audio.currentTime = 0;
  }
}

function happens(audio, name) {
  return new Promise((resolve, reject) => {
    audio.addEventListener(name, resolve, { once: true });
    audio.addEventListener("error", () => reject(new Error("cannot be played")), { once: true });
  });
}
