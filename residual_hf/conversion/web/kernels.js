// The kernels of residual_hf in WebAssembly, which search for the translation of one sentence at a time: with one thread, a
// batch of sentences takes as long as each of them alone.

const IMPOSSIBLE = -1e9; // the score of what must not be chosen
const [PADDING, ROW_PADDING] = [64, 32]; // of outputs, and rows that the kernels may read beyond the last one
const ARRAYS = { int32: Int32Array, int64: BigInt64Array, float: Float32Array };
const [PAUSED, FORCE, ANY] = [1, 4, 2 ** 31 - 1]; // of `Progress` and `RuleKind` in native.h

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
    const base = this.#c.malloc(size) >>> 0; // without a sign
    if (!base) throw new Error("The model needs more memory than there is.");
    await fill((at, part) => new Uint8Array(this.#c.memory.buffer, base + at, part.length).set(part));
    for (const place of pointers) new Uint32Array(this.#c.memory.buffer, base + place, 1)[0] += base;
    let start = base + bytes;
    for (const { pointers: places, count } of halves) {
      const table = this.#c.malloc(4 * count) >>> 0;
      if (!table) throw new Error("The model needs more memory than there is.");
      const halved = new Uint16Array(this.#c.memory.buffer, start, count);
      const widened = new Float32Array(this.#c.memory.buffer, table, count);
      for (let i = 0; i < count; i++) widened[i] = WIDE[halved[i]];
      for (const place of places) new Uint32Array(this.#c.memory.buffer, base + place, 1)[0] = table;
      start += 2 * count;
    }
    for (const stack of Object.values(this.#model.stacks)) stack.address = base + stack.place;
  }

  // The ids of the translation of a sentence, without those that begin and end it. `tokens`: the only ones that it may
  // have, in ascending order; null: all.
  search(ids, { beams, lengthPenalty, earlyStopping, limit, forced, tokens }) {
    const { start, ends, pad, min_length } = this.#model.search;
    try {
      const longest = limit + 1; // with the token that begins it
      const [memory, decoder] = [this.#read(ids, beams, longest, tokens), this.#model.stacks.decoder.address];
      const paths = Array.from({ length: 2 * beams * longest }, (_, i) => BigInt(i % (2 * longest) ? pad : start));
      const found = this.#array("int64", paths);
      const rule = { kind: FORCE, first: 1, end: 2, count: 1, tokens: this.#array("int64", [BigInt(forced ?? 0)]) };
      const search = this.#struct("Search", {
        sentences: 1, beams, threads: 1, prompt_length: 1, length: 1, min_length, longest,
        candidates: beams === 1 ? 1 : Math.max(2, 1 + ends.length) * beams,
        early_stopping: Number(earlyStopping), length_penalty: lengthPenalty,
        rules: Number(forced !== null), rule: this.#struct("Rule", rule),
        limits: this.#array("int64", [BigInt(longest)]),
        end_tokens: ends.length, end_token: this.#array("int64", ends.map(BigInt)),
        position: this.#model.firstPosition, positions: this.#model.positions ?? ANY, room: beams * longest,
        paths: found,
        scores: this.#array("float", Array(beams).fill(beams === 1 ? 0 : IMPOSSIBLE)),
        lengths: this.#array("int64", Array(beams).fill(0n)),
      });
      const scratch = this.#take(this.#c.search_scratch_size(decoder, memory, search));
      let progress = PAUSED;
      while (progress === PAUSED) progress = this.#c.search(decoder, memory, search, scratch);
      if (progress) throw new Error(`the search has stopped (${progress})`);
      const path = Array.from(new BigInt64Array(this.#c.memory.buffer, found, longest), Number).slice(1);
      const end = path.findIndex((id) => id === pad || ends.includes(id));
      return end < 0 ? path : path.slice(0, end);
    } finally {
      for (const address of this.#taken.splice(0)) this.#c.free(address);
    }
  }

  // The memory of a decoder of a source sentence.
  #read(ids, beams, longest, tokens) {
    const { encoder, decoder } = this.#model.stacks;
    const [n, layers, first] = [ids.length, decoder.layers, this.#model.firstPosition];
    const entry = 4 * decoder.attention_width; // bytes of keys and values
    const numbers = this.#array("int32", ids.map((_, i) => i));
    const whole = this.#array("int32", [n]);
    const states = this.#take((n + ROW_PADDING) * encoder.stride * 2);
    const own = this.#take(n * 4 * encoder.attention_width);
    const source = this.#struct("Source", {
      tokens: this.#array("int64", ids.map(BigInt)),
      positions: this.#array("int64", ids.map((_, i) => BigInt(first + i))),
      "table.entries": numbers, "table.stride": n, "table.lengths": whole,
      "table.line": this.#array("int32", ids.map(() => 0)),
      longest: n,
      cache: this.#array("int32", Array(encoder.layers).fill(own)),
      output: states,
    });
    const starts = this.#array("int32", [0, n]);
    const scratch = this.#take(this.#c.encode_scratch_size(encoder.address, source, 1, starts));
    if (!this.#c.encode(encoder.address, source, 1, starts, scratch)) throw new Error("a token is not in the vocabulary");
    const cross = this.#take(layers * n * entry);
    const own_scratch = this.#take(this.#c.project_scratch_size(decoder.address, n));
    this.#c.project_source(decoder.address, n, states, cross, own_scratch);
    return this.#struct("Memory", {
      max_length: longest, longest_source: n, source_entries: n,
      self_cache: this.#array("int32", Array.from({ length: layers }, () => this.#take(beams * longest * entry))),
      cross_cache: cross, source_table: numbers, source_lengths: whole,
      ancestors: this.#array("int32", Array(longest).fill(0)),
      lengths: this.#array("int32", [0]), sources: this.#array("int32", [0]),
      ...(tokens ? this.#listed(tokens) : {}),
    });
  }

  // The outputs of some tokens, gathered from panels of the whole output layer, and padding that is never chosen.
  #listed(tokens) {
    const { place, panel } = this.#model.logits;
    const whole = {};
    for (const [field, [at]] of Object.entries(this.#model.layouts.Linear.fields)) {
      whole[field] = this.#words(this.#model.stacks.decoder.address + place + at, 1)[0];
    }
    const rows = Math.ceil(tokens.length / PADDING) * PADDING;
    const words = whole.inputs / 4; // of a row
    const sizes = { weights: rows * words, bias: rows, scales: rows, offsets: rows };
    const own = Object.fromEntries(Object.entries(sizes).map(([field, size]) => [field, this.#take(4 * size)]));
    const start = (row) => (row - (row % panel)) * words + (row % panel);
    for (const [field, size] of Object.entries(sizes)) {
      const count = (size / rows) * whole.outputs;
      const [from, to] = [this.#words(whole[field], count), this.#words(own[field], size)];
      for (let row = 0; row < rows; row++) {
        const token = tokens[row] ?? 0;
        if (field !== "weights") to[row] = from[token];
        else for (let i = start(token), j = start(row), n = 0; n < words; n++) to[j + n * panel] = from[i + n * panel];
      }
    }
    new Float32Array(this.#c.memory.buffer, own.bias, rows).fill(-Infinity, tokens.length);
    return {
      listed: this.#struct("Linear", { ...whole, ...own, outputs: rows }),
      list_starts: this.#array("int32", [0, rows]),
      list_ids: this.#array("int64", Array.from({ length: rows }, (_, row) => BigInt(tokens[row] ?? 0))),
    };
  }

  #words(address, count) {
    return new Uint32Array(this.#c.memory.buffer, address, count);
  }

  #take(bytes) {
    const address = this.#c.malloc(bytes) >>> 0;
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
      else if (type === "double") view.setFloat64(place, value, true);
      else view.setInt32(place, value, true);
    }
    return address;
  }
}

// Of all numbers of 16 bits.
const WIDE = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
});
