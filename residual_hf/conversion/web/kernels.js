// Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
// The kernels of residual_hf in WebAssembly, and a search over them for one sentence at a time: with one thread, a batch
// of sentences takes as long as each of them alone.

const IMPOSSIBLE = -1e9; // the score of what must not be chosen
const ROW_PADDING = 32; // rows that the kernels may read beyond the last one
const ARRAYS = { int32: Int32Array, int64: BigInt64Array, float: Float32Array };

export class Kernels {
  #c; // the functions of the library
  #model;
  #taken = []; // memory of the sentence

  constructor(instance, model) {
    this.#c = instance.exports;
    this.#model = model;
    this.#c._initialize?.();
    if (this.#c.interface_version() >>> 0 !== model.interface) {
      throw new Error("kernels.wasm and model.json are of different versions of residual_hf: export the model again");
    }
  }

  // Memory for the weights, whose bytes `fill(bytes)` writes; they end with tables in half precision.
  async load(fill) {
    const { bytes, size, pointers, halves } = this.#model.image;
    const base = this.#c.malloc(size);
    if (!base) throw new Error("The model needs more memory than there is.");
    await fill((at, part) => new Uint8Array(this.#c.memory.buffer, base + at, part.length).set(part));
    for (const place of pointers) new Uint32Array(this.#c.memory.buffer, base + place, 1)[0] += base;
    let start = base + bytes;
    for (const { pointers: places, count } of halves) {
      const table = this.#c.malloc(4 * count);
      if (!table) throw new Error("The model needs more memory than there is.");
      const halved = new Uint16Array(this.#c.memory.buffer, start, count);
      const widened = new Float32Array(this.#c.memory.buffer, table, count);
      for (let i = 0; i < count; i++) widened[i] = WIDE[halved[i]];
      for (const place of places) new Uint32Array(this.#c.memory.buffer, base + place, 1)[0] = table;
      start += 2 * count;
    }
    for (const stack of Object.values(this.#model.stacks)) stack.address = base + stack.place;
  }

  // The ids of the translation of a sentence, without those that begin and end it.
  search(ids, { beams, lengthPenalty, earlyStopping, limit, forced }) {
    try {
      const { start, ends, pad } = this.#model.search;
      const candidates = beams === 1 ? 1 : Math.max(2, 1 + ends.length) * beams;
      const decoder = this.#start(ids, beams, limit + 1, candidates);
      const first = [start];
      if (forced !== null) {
        decoder.step([start], 1);
        decoder.select([0]);
        first.push(forced);
      }
      const found =
        limit < first.length
          ? first
          : beams === 1
            ? greedy(decoder, first, ends, limit)
            : beamSearch(decoder, first, ends, { beams, candidates, lengthPenalty, earlyStopping, limit });
      const end = found.findIndex((id, i) => i > 0 && (id === pad || ends.includes(id)));
      return found.slice(1, end < 0 ? limit + 1 : end);
    } finally {
      for (const address of this.#taken.splice(0)) this.#c.free(address);
    }
  }

  #start(ids, beams, length, candidates) {
    const { encoder, decoder } = this.#model.stacks;
    const [n, layers, first] = [ids.length, decoder.layers, this.#model.firstPosition];
    const width = 2 * decoder.attention_width; // keys and values
    const numbers = this.#array("int32", ids.map((_, i) => i));
    const zeros = this.#array("int32", ids.map(() => 0));
    const whole = this.#array("int32", [n]);
    const states = this.#take((n + ROW_PADDING) * encoder.stride * 2);
    const own = this.#take(n * 4 * encoder.attention_width);
    const source = this.#struct("Source", {
      tokens: this.#array("int64", ids.map(BigInt)),
      positions: this.#array("int64", ids.map((_, i) => BigInt(first + i))),
      "table.entries": numbers, "table.stride": n, "table.line": zeros, "table.lengths": whole, // of one sentence
      longest: n,
      cache: this.#array("int32", Array(encoder.layers).fill(own)),
      output: states,
    });
    const starts = this.#array("int32", [0, n]);
    const scratch = this.#take(this.#c.encode_scratch_size(encoder.address, source, 1, starts));
    if (!this.#c.encode(encoder.address, source, 1, starts, scratch)) throw new Error("a token is not in the vocabulary");
    const cross = this.#take(layers * n * width * 2);
    this.#c.project_source(decoder.address, n, states, cross, this.#take(this.#c.project_scratch_size(decoder.address, n)));
    const caches = Array.from({ length: layers }, () => this.#take(beams * length * width * 2));
    return new Decoder(this.#c, decoder.address, {
      beams, length, first, candidates,
      vocabulary: this.#model.vocabulary,
      array: (type, values) => this.#array(type, values),
      take: (bytes) => this.#take(bytes),
      step: (values) => this.#struct("Step", values),
      memory: (values) => this.#struct("Memory", {
        max_length: length, longest_source: n, source_entries: n,
        self_cache: this.#array("int32", caches), cross_cache: cross, source_table: numbers, source_lengths: whole,
        ...values,
      }),
    });
  }

  #take(bytes) {
    const address = this.#c.malloc(bytes);
    if (!address) throw new Error("The sentence needs more memory than there is.");
    this.#taken.push(address);
    return address;
  }

  #array(type, values) {
    const address = this.#take(Math.max(values.length, 1) * ARRAYS[type].BYTES_PER_ELEMENT);
    new ARRAYS[type](this.#c.memory.buffer, address, values.length).set(values);
    return address;
  }

  #struct(name, values) {
    const { size, fields } = this.#model.layouts[name];
    const address = this.#take(size);
    const view = new DataView(this.#c.memory.buffer, address, size);
    for (const [field, [place, type]] of Object.entries(fields)) {
      const value = values[field] ?? 0;
      if (type === "int64_t") view.setBigInt64(place, BigInt(value), true);
      else view.setInt32(place, value, true);
    }
    return address;
  }
}

// The rows of a sentence, its beams; those that are selected share the keys and values that were written before.
class Decoder {
  #c;
  #stack;
  #of;
  #places; // addresses of arrays
  #entries = 0; // of the cache that are in use
  #length = 0;
  rows = 1;

  constructor(c, stack, of) {
    [this.#c, this.#stack, this.#of] = [c, stack, of];
    const { beams, length } = of;
    const places = (this.#places = {
      ancestors: of.array("int32", Array(beams * length).fill(0)),
      lengths: of.array("int32", Array(beams).fill(0)),
      sources: of.array("int32", Array(beams).fill(0)),
    });
    places.memory = of.memory(places);
    places.tokens = of.array("int64", Array(beams).fill(0n));
    places.log_probs = of.take(4 * beams * of.candidates);
    places.ids = of.take(8 * beams * of.candidates);
    places.scratch = of.take(c.decode_scratch_size(stack, places.memory, beams, 1));
  }

  // Feed a token to each row; returns log-probabilities and ids of the `count` best that may follow each, one row after
  // the other.
  step(tokens, count) {
    const { memory, scratch } = this.#places;
    const candidates = Math.min(count, this.#of.vocabulary);
    const size = this.rows * candidates;
    this.#view(BigInt64Array, "tokens", tokens.length).set(tokens.map(BigInt));
    const step = { ...this.#places, rows: this.rows, candidates, entry: this.#entries, position: this.#of.first };
    this.#c.decode(this.#stack, memory, this.#of.step(step), 1, scratch);
    this.#entries += this.rows;
    this.#view(Int32Array, "lengths", this.rows).fill(++this.#length);
    const ids = Array.from(this.#view(BigInt64Array, "ids", size), Number);
    return { values: Array.from(this.#view(Float32Array, "log_probs", size)), ids, candidates };
  }

  // Continue with these rows.
  select(rows) {
    const { length } = this.#of;
    const ancestors = this.#view(Int32Array, "ancestors", this.#of.beams * length);
    const kept = rows.map((row) => ancestors.slice(row * length, row * length + this.#length));
    kept.forEach((row, i) => ancestors.set(row, i * length));
    this.rows = rows.length;
    this.#view(Int32Array, "lengths", this.rows).fill(this.#length);
  }

  #view(type, name, count) {
    return new type(this.#c.memory.buffer, this.#places[name], count);
  }
}

function greedy(decoder, tokens, ends, limit) {
  for (;;) {
    const next = decoder.step([tokens.at(-1)], 1).ids[0];
    tokens.push(next);
    if (ends.includes(next) || tokens.length > limit) return tokens;
  }
}

// The rules of `residual_hf.model.search`, in single precision.
function beamSearch(decoder, prompt, ends, { beams, candidates, lengthPenalty, earlyStopping, limit }) {
  let running = [{ tokens: prompt, score: 0 }];
  let finished = [];
  let goal = IMPOSSIBLE;
  for (let length = prompt.length; ; length++) {
    const found = decoder.step(running.map(({ tokens }) => tokens.at(-1)), candidates);
    let best = best_of(
      found.ids.map((id, i) => {
        const row = Math.floor(i / found.candidates);
        return { id, row, score: Math.fround(found.values[i] + running[row].score) };
      }),
      candidates,
    );
    const isLast = length >= limit;
    const divisor = Math.fround(length ** lengthPenalty);
    const tokensOf = ({ id, row }) => [...running[row].tokens, id];
    const isEnd = ({ id }) => isLast || ends.includes(id);
    if (best.some(isEnd)) {
      const entering = best.slice(0, beams).filter(isEnd);
      const own = entering.map((each) => ({ tokens: tokensOf(each), score: Math.fround(each.score / divisor) }));
      finished = best_of([...finished, ...own], beams);
      if (finished.length === beams) goal = earlyStopping === true ? Infinity : finished.at(-1).score;
      best = best_of(best.map((each) => (isEnd(each) ? { ...each, score: IMPOSSIBLE } : each)), beams);
    }
    best = best.slice(0, beams);
    if (isLast || !(Math.fround(best[0].score / divisor) > goal)) break;
    running = best.map((each) => ({ tokens: tokensOf(each), score: each.score }));
    decoder.select(best.map(({ row }) => row));
  }
  return finished[0]?.tokens ?? prompt;
}

function best_of(all, count) {
  return all.sort((a, b) => b.score - a.score).slice(0, count);
}

// Of all numbers of 16 bits.
const WIDE = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
});
