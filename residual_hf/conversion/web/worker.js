// A translator beside the page. Messages in: {id, text, to, beams}; the newest one ends those before. Messages out:
// {progress}, {languages}, {id, part}, {id, done}, {error}.

import { Translator } from "./translator.js";

let newest = 0;
const loaded = Translator.load(undefined, { progress: (bytes, of) => postMessage({ progress: bytes / of }) });
loaded.then(
  ({ languages, model }) => postMessage({ languages, beams: model.search.num_beams }),
  (error) => postMessage({ error: error.message }),
);

addEventListener("message", async ({ data: { id, text, ...options } }) => {
  newest = id;
  try {
    for await (const part of (await loaded).stream(text, options)) {
      if (id !== newest) return;
      postMessage({ id, part });
    }
    postMessage({ id, done: true });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
});
