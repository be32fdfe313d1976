// Translation with a model that `residual-hf export --to web` has written, in browsers, workers and Node:
//
//     import { Translator } from "./translator.js";
//     const translator = await Translator.load("./");
//     await translator.translate("Good morning. How are you?");
//     for await (const part of translator.stream(text)) console.log(part);

import { Kernels } from "./kernels.js";
import { Texts, edited } from "./text.js";
import { Tokenizer } from "./tokenizers.js";

const FORMAT = 1; // of model.json, as in to_web.py

// An error whose message says what to do.
export class TranslatorError extends Error {}

export class Translator {
  // Load a model from the folder `url`, by default that of this module. `progress(bytes, of)` is called meanwhile.
  // `shortlist`: load that of the model, and compute only target tokens that are likely for a sentence.
  static async load(url = new URL("./", import.meta.url), { progress = () => {}, shortlist = false } = {}) {
    const base = new URL(String(url).replace(/\/?$/, "/"), globalThis.document?.baseURI ?? import.meta.url);
    const model = parsed("model.json", await read(new URL("model.json", base), { cache: "no-cache" }));
    if (model.format !== FORMAT) {
      throw new TranslatorError("model.json and translator.js are of different versions of residual_hf: export the model again, or reload the page without its cache.");
    }
    const fileOf = (name) => new URL(`${name}?${model.export}`, base); // a cache may have that of another export
    const json = async (name) => parsed(name, await read(fileOf(name)));
    const [tokenizer, target, list, library] = await Promise.all([
      json("tokenizer.json"),
      model.hasTarget ? json("target_tokenizer.json") : null,
      shortlist ? read(fileOf("shortlist.bin")).then((file) => new Shortlist(file)) : null,
      read(fileOf("kernels.wasm")),
    ]);
    let kernels;
    try {
      kernels = new Kernels((await WebAssembly.instantiate(library)).instance, model);
    } catch (error) {
      throw new TranslatorError(`kernels.wasm cannot run here (${error.message}). A current browser or Node 18 is needed.`);
    }
    await kernels.load((write) => download(fileOf("model.bin"), model.image.size, write, progress));
    return new Translator(model, kernels, tokenizer, target, list);
  }

  constructor(model, kernels, tokenizer, target, shortlist = null) {
    this.model = model;
    this.kernels = kernels;
    this.shortlist = shortlist;
    this.texts = new Texts(model);
    this.tokenizer = tokenizerOf(tokenizer, model.text);
    this.target = target ? tokenizerOf(target, model.text) : this.tokenizer;
  }

  // Codes of the source language (or null) and of the target languages.
  get languages() {
    return { source: this.model.source, targets: this.model.targets.map(({ language }) => language) };
  }

  // The translation of a text, or the translations of several. Options: `beams` (1: greedy search), `to` (a target
  // language), `split` (false: each text is a sentence).
  async translate(texts, options = {}) {
    if (Array.isArray(texts)) {
      const found = [];
      for (const text of texts) found.push(await this.translate(text, options));
      return found;
    }
    let all = "";
    for await (const part of this.stream(texts, options)) all += part;
    return all;
  }

  // Parts of the translation of a text as they are ready, whose sum is the translation.
  async *stream(text, { beams = this.model.search.num_beams, to, split = true } = {}) {
    if (typeof text !== "string") throw new TypeError("text: must be a string");
    if (!Number.isInteger(beams) || beams < 1 || beams > 1000) throw new RangeError("beams: must be from 1 to 1000");
    const target = this.#targetOf(to);
    let last = null; // the part before: its source, the space behind it, and its translation
    for (const [part, space] of this.#parts(text, target, split)) {
      const translation = this.#sentence(part, target, beams);
      const between = last ? this.texts.spaceBetween(last.part, last.space, last.translation, translation) : "";
      last = { part, space, translation };
      yield between + translation;
      await turn();
    }
    if (last) yield last.space;
  }

  // Token ids of the translation of source ids.
  search(ids, target = this.model.targets[0], beams = this.model.search.num_beams) {
    const { search, positions } = this.model;
    if (positions !== null && ids.length > positions) {
      throw new RangeError(`ids: ${ids.length} given, the model reads at most ${positions}`);
    }
    const most = Math.floor(search.max_length_a * ids.length + search.max_length_b);
    return this.kernels.search(ids, {
      beams,
      lengthPenalty: search.length_penalty,
      earlyStopping: search.early_stopping,
      limit: Math.max(1, positions === null ? most : Math.min(most, positions - 1)),
      forced: target.forced,
      tokens: this.shortlist?.tokensFor(ids) ?? null,
    });
  }

  encode(text, target = this.model.targets[0]) {
    const { known, unknown } = this.model.text;
    const ids = this.tokenizer.encode(target.prefix + edited(text, this.texts.edits(text))).ids;
    return known ? ids.map((id) => (id < known[0] ? id : unknown)) : ids;
  }

  #sentence(text, target, beams) {
    const kept = this.texts.kept(text);
    if (kept !== null) return kept;
    const special = this.model.text.special;
    const ids = this.search(this.encode(text, target), target, beams).filter((id) => !special.includes(id));
    let translation = ids.length ? this.target.decode(ids, { clean_up_tokenization_spaces: false }) : "";
    if (this.model.text.tagsTargets) translation = this.texts.withoutTag(translation);
    return this.texts.restored(translation, text, target.language);
  }

  // Sentences, or parts of those that are too long, each with the space behind it.
  *#parts(text, target, split) {
    const { positions } = this.model;
    const fits = (part) => positions === null || this.encode(part, target).length <= positions;
    if (!split && fits(text)) return yield [text, ""];
    for (const sentence of split ? sentencesOf(text, this.model.source, this.texts.wholes(text)) : [text]) {
      const own = split ? sentence.trimStart() : sentence;
      if (own !== sentence) yield ["", sentence.slice(0, sentence.length - own.length)];
      if (own) yield* this.texts.split(own, fits);
    }
  }

  #targetOf(language) {
    const { targets } = this.model;
    if (language === undefined && targets.length === 1) return targets[0];
    const given = language === undefined ? "missing" : `${language} given`;
    const found = targets.find((target) => target.language === language);
    if (!found) throw new RangeError(`to: ${given}, must be one of ${this.languages.targets.join(", ")}`);
    return found;
  }
}

// Target tokens that are likely for source tokens. The file has a number of lists and the bytes of an id; where each
// list starts and the last one ends; and ids: those of all sentences, then those of each source token.
class Shortlist {
  constructor(file) {
    try {
      const [lists, bytes] = new Uint32Array(file.buffer, 0, 2);
      this.starts = new Uint32Array(file.buffer, 8, lists + 1);
      this.ids = new (bytes === 2 ? Uint16Array : Uint32Array)(file.buffer, 12 + 4 * lists);
    } catch {
      this.ids = [];
    }
    if (this.ids.length !== this.starts?.at(-1)) throw new TranslatorError("shortlist.bin is damaged: copy it again.");
  }

  // In ascending order.
  tokensFor(source) {
    const found = new Set();
    for (const list of [0, ...source.map((id) => id + 1)]) {
      for (let i = this.starts[list]; i < this.starts[list + 1]; i++) found.add(this.ids[i]);
    }
    return Uint32Array.from(found).sort();
  }
}

// Lets the page and newer requests in; timers would wait for a second in a hidden tab.
function turn() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((next) => {
    port1.onmessage = () => next(port1.close());
    port2.postMessage(null);
  });
}

// With the white space behind them. ICU ends one after "Mr." and the like, and within what is one whole, such as an address.
function* sentencesOf(text, language, wholes) {
  let before = "", place = 0, next = 0;
  for (const { segment } of segmenter(language).segment(text)) {
    before += segment;
    place += segment.length;
    while (next < wholes.length && wholes[next][1] <= place) next++;
    if (next < wholes.length && wholes[next][0] < place) continue;
    if (/(?:^|[\s(])(?:\p{Lu}|Mrs?|Ms|Dr|Prof|St|Nr|No|vs|etc|z\. ?B|d\. ?h)\.[ \u00a0]$/u.test(before)) continue;
    yield before;
    before = "";
  }
  if (before) yield before;
}

function segmenter(language) {
  try {
    return new Intl.Segmenter(language ?? undefined, { granularity: "sentence" });
  } catch {
    return new Intl.Segmenter(undefined, { granularity: "sentence" }); // not a code of BCP 47
  }
}

// Special tokens in a text are text where the tokenizer of Python says so.
function tokenizerOf(described, { splitsSpecial, charsmap }) {
  const added_tokens = described.added_tokens.filter((token) => !(splitsSpecial && token.special));
  const pre_tokenizer = asPattern(described.pre_tokenizer);
  const normalizer = charsmap ? mapped(described.normalizer, charsmap) : described.normalizer;
  const tokenizer = new Tokenizer({ ...described, normalizer, pre_tokenizer, added_tokens }, {});
  const { model } = tokenizer;
  countPieces(tokenizer);
  if (described.model.type === "Unigram" && described.model.byte_fallback) {
    const encode = model.encode.bind(model); // which leaves unknown characters as they are
    model.encode = (words) => encode(words).flatMap((piece) => (model.tokens_to_ids.has(piece) ? piece : bytesOf(piece)));
  }
  return tokenizer;
}

// Between added tokens, the library takes each piece of a text for its first one, which begins with a space.
function countPieces(tokenizer) {
  const { pre_tokenizer, splitter_normalized } = tokenizer;
  if (!pre_tokenizer) return;
  let pieces = [], next = 0;
  tokenizer.splitter_normalized = {
    split(text) {
      next = 0;
      return (pieces = splitter_normalized.split(text));
    },
  };
  tokenizer.pre_tokenizer = (piece, { section_index }) => {
    const place = pieces.indexOf(piece, next);
    next = place + 1;
    return pre_tokenizer(piece, { section_index: section_index + place });
  };
}

// SentencePiece's table of characters, which the library does not read, as other steps.
function mapped(step, normalizers) {
  if (step?.normalizers) return { ...step, normalizers: step.normalizers.map((each) => mapped(each, normalizers)) };
  return step?.type === "Precompiled" ? { type: "Sequence", normalizers } : step;
}

// Steps that split at a string, which the library would keep, split at a pattern.
function asPattern(step) {
  if (step?.pretokenizers) return { ...step, pretokenizers: step.pretokenizers.map(asPattern) };
  const separator = step?.type === "Split" ? step.pattern.String : undefined;
  return separator === undefined ? step : { ...step, pattern: { Regex: separator.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&") } };
}

function bytesOf(piece) {
  return Array.from(new TextEncoder().encode(piece), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
}

function parsed(name, bytes) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new TranslatorError(`${name} is damaged: copy it again.`);
  }
}

async function open(url, options) {
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    try {
      return new Response(await readFile(url));
    } catch (error) {
      throw new TranslatorError(`${url.pathname} cannot be read (${error.code}).`);
    }
  }
  if (url.protocol === "file:") {
    throw new TranslatorError("Browsers do not read files of a folder: run `python -m http.server` in it, and open http://localhost:8000");
  }
  const answer = await fetch(url, options).catch((error) => {
    throw new TranslatorError(`${url.pathname} cannot be loaded (${error.message}).`);
  });
  if (!answer.ok) throw new TranslatorError(`${url.pathname} cannot be loaded (${answer.status} ${answer.statusText}).`);
  return answer;
}

async function read(url, options) {
  return new Uint8Array(await (await open(url, options)).arrayBuffer());
}

// `write(at, part)` gets the bytes of a file as they come.
async function download(url, size, write, progress) {
  const reader = (await open(url)).body.getReader();
  let at = 0;
  for (let next; !(next = await reader.read()).done; at += next.value.length) {
    if (at + next.value.length <= size) write(at, next.value);
    progress(at + next.value.length, size);
  }
  if (at !== size) throw new TranslatorError(`${url.pathname} has ${at} bytes, must have ${size}: copy it again.`);
}
