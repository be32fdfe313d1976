// The part of web_speed.py that runs in Node, or in a page of a browser, in the folder that it has written.
const inNode = typeof process !== "undefined";
const { repeats, runtimes: names, batches } = JSON.parse(inNode ? process.argv[2] : decodeURIComponent(location.hash.slice(1)));
const url = (name) => new URL(name, import.meta.url);
const bytes = async (name) => {
  if (inNode) return Uint8Array.from((await import("node:fs")).readFileSync(url(name))).buffer;
  return (await fetch(url(name))).arrayBuffer();
};
const STEPS = 30;
const sentences = JSON.parse(new TextDecoder().decode(await bytes("sentences.json"))); // [{text, ids}]

async function web(shortlist) {
  const { Translator } = await import(url("site/translator.js"));
  const translator = await Translator.load(url("site"), { shortlist });
  translator.model.search.ends = []; // all translations reach the limit
  return async (chosen, beams) => {
    for (const { text, ids } of chosen) {
      translator.encode(text);
      translator.target.decode(translator.search(ids, undefined, beams));
    }
  };
}

async function onnx() {
  const ort = await import(inNode ? "onnxruntime-web" : url("node_modules/onnxruntime-web/dist/ort.wasm.min.mjs"));
  ort.env.wasm.numThreads = 1;
  const load = async (name) => ort.InferenceSession.create(new Uint8Array(await bytes(`onnx/${name}.onnx`)), { executionProviders: ["wasm"] });
  const [encoder, first, later] = await Promise.all(["encoder_model", "decoder_model", "decoder_with_past_model"].map(load));
  const integers = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values.map(BigInt)), shape);
  const inputsOf = (session, all) => Object.fromEntries(session.inputNames.filter((name) => name in all).map((name) => [name, all[name]]));
  const translate = async (ids, rows) => {
    const repeated = Array(rows).fill(ids).flat();
    const mask = integers(repeated.map(() => 1), [rows, ids.length]);
    const source = await encoder.run(inputsOf(encoder, { input_ids: integers(repeated, [rows, ids.length]), attention_mask: mask }));
    const given = { encoder_attention_mask: mask, encoder_hidden_states: source[encoder.outputNames[0]] };
    let tokens = Array(rows).fill(2);
    for (let step = 0; step < STEPS; step++) {
      const session = step ? later : first;
      const found = await session.run(inputsOf(session, { ...given, input_ids: integers(tokens, [rows, 1]) }));
      for (const name of session.outputNames) given[name.replace("present", "past_key_values")] = found[name];
      const logits = found.logits.data;
      const width = logits.length / rows;
      tokens = tokens.map((_, row) => logits.subarray(row * width, (row + 1) * width).reduce((best, value, i, all) => (value > all[best] ? i : best), 0));
    }
  };
  return async (chosen, beams) => {
    for (const { ids } of chosen) await translate(ids, beams);
  };
}

// In a thread, as its own module does.
async function bergamot(listed) {
  const Thread = inNode ? (await import("node:worker_threads")).Worker : Worker;
  const thread = new Thread(url("bergamot/translator-worker.js"));
  const waiting = new Map();
  const take = ({ id, result, error }) => {
    const [resolve, reject] = waiting.get(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  };
  if (inNode) thread.on("message", take);
  else thread.onmessage = ({ data }) => take(data);
  let last = 0;
  const call = (name, ...args) => new Promise((resolve, reject) => {
    waiting.set(++last, [resolve, reject]);
    thread.postMessage({ id: last, name, args });
  });
  const [model, vocabulary] = await Promise.all([bytes("marian/model.bin"), bytes("marian/vocab.model")]);
  const shortlist = listed ? await bytes("marian/shortlist.bin") : new ArrayBuffer(0);
  await call("initialize", { cacheSize: 0 });
  const loaded = new Set();
  return async (chosen, beams) => {
    const pair = { from: "a", to: String(beams) };
    const config = { "beam-size": beams, "gemm-precision": "int8shiftAll" };
    if (!loaded.has(beams)) await call("loadTranslationModel", pair, { model, shortlist, vocabs: [vocabulary], config });
    loaded.add(beams);
    const text = chosen.map((sentence) => sentence.text).join("\n");
    const [{ target }] = await call("translate", { models: [pair], texts: [{ text, html: false, qualityScores: false }] });
    return target.text;
  };
}

const RUNTIMES = {
  web: () => web(false),
  "web, shortlist": () => web(true),
  "onnxruntime-web": onnx,
  bergamot: () => bergamot(false),
  "bergamot, shortlist": () => bergamot(true),
};
const found = { first: null, single: {}, batch: {}, text: {} };
try {
  const runtimes = {};
  for (const name of names) runtimes[name] = await RUNTIMES[name]();
  for (const beams of [1, 5]) {
    for (const [kind, count, chosen] of [["single", repeats, sentences.slice(0, 1)], ["batch", batches, sentences]]) {
      const best = (found[kind][beams] = {});
      if (kind === "batch" && !count) continue;
      for (let repeat = 0; repeat <= count; repeat++) {
        for (const [name, run] of Object.entries(runtimes)) {
          const start = performance.now();
          found.text[name] = await run(chosen, beams);
          const now = performance.now();
          found.first ??= now; // since the page was opened
          if (repeat) best[name] = Math.min((now - start) / chosen.length, best[name] ?? Infinity); // the first one compiles
        }
      }
    }
  }
} catch (error) {
  found.error = String(error?.stack ?? error);
}
if (inNode) {
  console.log(JSON.stringify(found));
  process.exit();
}
await fetch("/found", { method: "POST", body: JSON.stringify(found) });
