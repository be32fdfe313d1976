// The part of web_speed.py that runs in Node, in the folder that it has written.
import { readFileSync } from "node:fs";
import Module, { createRequire } from "node:module";
import { resolve } from "node:path";
import worker, { MessageChannel } from "node:worker_threads";
import { pathToFileURL } from "node:url";

const [repeats, withOthers] = [Number(process.argv[2]), process.argv[3] === "True"];
const STEPS = 30;
const ids = Array.from({ length: 25 }, (_, i) => 10 + 37 * i);

async function web() {
  const { Translator } = await import(pathToFileURL(resolve("site/translator.js")));
  const translator = await Translator.load(pathToFileURL(resolve("site")));
  translator.model.search.ends = []; // all translations reach the limit
  return async (beams) => translator.search(ids, undefined, beams);
}

async function onnx() {
  const ort = await import("onnxruntime-web");
  ort.env.wasm.numThreads = 1;
  const load = (name) => ort.InferenceSession.create(readFileSync(`onnx/${name}.onnx`), { executionProviders: ["wasm"] });
  const [encoder, first, later] = await Promise.all(["encoder_model", "decoder_model", "decoder_with_past_model"].map(load));
  const integers = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values.map(BigInt)), shape);
  const inputsOf = (session, all) => Object.fromEntries(session.inputNames.filter((name) => name in all).map((name) => [name, all[name]]));
  return async (rows) => {
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
}

// Its worker, without a thread of its own.
async function bergamot() {
  const file = createRequire(resolve("x.js")).resolve("@browsermt/bergamot-translator/worker/translator-worker.js");
  Object.defineProperty(worker, "parentPort", { value: new MessageChannel().port1 });
  const script = new Module(file);
  Object.assign(script, { filename: file, paths: [] });
  const source = readFileSync(file, "utf8").replace("max-length-factor: 2.0", "max-length-factor: 1.18"); // 30 tokens
  script._compile(`${source}\nmodule.exports = BergamotTranslatorWorker;`, file);
  const translator = new script.exports();
  await translator.initialize({ cacheSize: 0 });
  const bytes = (name) => Uint8Array.from(readFileSync(`marian/${name}`)).buffer;
  const [model, vocabulary, text] = [bytes("model.bin"), bytes("vocab.model"), readFileSync("marian/text", "utf8")];
  const loaded = new Set();
  return async (beams) => {
    const pair = { from: "a", to: String(beams) };
    const config = { "beam-size": beams, "gemm-precision": "int8shiftAll" };
    if (!loaded.has(beams)) translator.loadTranslationModel(pair, { model, shortlist: new ArrayBuffer(0), vocabs: [vocabulary], config });
    loaded.add(beams);
    translator.translate({ models: [pair], texts: [{ text, html: false, qualityScores: false }] });
  };
}

const runtimes = { web: await web(), ...(withOthers ? { "onnxruntime-web": await onnx(), bergamot: await bergamot() } : {}) };
const found = {};
for (const beams of [1, 5]) {
  found[beams] = {};
  for (let repeat = 0; repeat <= repeats; repeat++) {
    for (const [name, run] of Object.entries(runtimes)) {
      const start = performance.now();
      await run(beams);
      const time = performance.now() - start;
      if (repeat) found[beams][name] = Math.min(time, found[beams][name] ?? Infinity); // the first one compiles
    }
  }
}
console.log(JSON.stringify(found));
process.exit();
