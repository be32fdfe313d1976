// What happens to a text before and after the model, as in `residual_hf.model.translation_inputs` and `placeholders`.
// Edits of a text are [start, end, new], in order and side by side.

export class Texts {
  constructor(model) {
    this.of = model.text;
    this.source = model.source;
    this.patterns = Object.fromEntries(
      Object.entries(model.text.patterns).map(([name, pattern]) => [name, new RegExp(pattern, "gu")]),
    );
  }

  // The translation of a text that the model does not read, or null.
  kept(text) {
    if (!text.trim()) return "";
    if (this.of.readsAll) return null;
    if (this.of.tagsSources || this.of.tagsTargets) text = this.withoutTag(text);
    const read = text.replace(this.patterns.RUN, "").replace(this.patterns.MARKUP, "");
    return /(?!\p{Lm}|ℹ)\p{L}/u.test(read) ? null : text;
  }

  withoutTag(text) {
    const tag = this.#first("TAG_PATTERN", text);
    return tag?.index === 0 ? text.slice(tag[0].length).replace(/^ /, "") : text;
  }

  // The places of placeholders, addresses and tags, in order.
  wholes(text) {
    const { RUN, MARKUP } = this.patterns;
    return [RUN, MARKUP].flatMap((pattern) => places(pattern, text)).sort((a, b) => a[0] - b[0]);
  }

  // The edits of a text as the model reads it.
  edits(text) {
    const edits = this.of.placeholders.length ? this.#masked(text) : this.#withoutEmoji(text);
    if (!this.#inLowerCase(text)) return edits;
    return this.#rewritten(text, (word, at) => this.#lower(word, text, at), edits);
  }

  // A translation with the placeholders, emoji and capitals of its source.
  restored(translation, source, target) {
    const edits = this.edits(source);
    const own = this.of.placeholders.length ? this.#withSpans(translation, source, edits) : this.#withEmoji(translation, source, edits);
    if (!this.#inLowerCase(source)) return edited(translation, own);
    return edited(translation, this.#rewritten(translation, (word) => upper(word, target), own));
  }

  // Parts of a text that fit the model, each with the space behind it: halves end at a sentence or at a space.
  *split(text, fits) {
    const part = text.trimEnd();
    const characters = [...part];
    if (characters.length < 2 || fits(part)) {
      yield [part, text.slice(part.length)];
      return;
    }
    const half = characters.slice(0, characters.length >> 1).join("").length;
    const { SENTENCE_END, COMMA } = this.patterns;
    const cut = this.#middleEnd(SENTENCE_END, part) ?? this.#middleEnd(/\s+/gu, part) ?? this.#middleEnd(COMMA, part) ?? half;
    yield* this.split(text.slice(0, cut), fits);
    yield* this.split(text.slice(cut), fits);
  }

  // The space between translations, the first of a source that `space` follows: none in scripts without spaces.
  spaceBetween(source, space, before, after) {
    const last = (text) => [...text].findLast((character) => !this.of.noLetters.includes(character));
    const first = [...after].find((character) => !this.of.noLetters.includes(character));
    if (this.#is("JOINED", last(before)) && this.#is("JOINED", first)) return space.replace(/^ /, "");
    const hasNone = this.#is("JOINED", [...before].at(-1)) || this.#is("JOINED", [...after][0]);
    const isEnd = this.#is("UNSPACED", last(source)) || this.#first("STOP", source);
    return space || (!hasNone && isEnd ? " " : "");
  }

  #middleEnd(pattern, text) {
    const ends = places(pattern, text).map(([, end]) => end).filter((end) => end < text.length);
    const distance = (end) => Math.abs(end - (text.length >> 1));
    return ends.sort((a, b) => distance(a) - distance(b))[0];
  }

  #is(name, character = "") {
    return new RegExp(`^(?:${this.of.patterns[name]})`, "u").test(character);
  }

  #first(name, text) {
    return new RegExp(this.of.patterns[name], "u").exec(text);
  }

  #inLowerCase(text) {
    if (!this.of.lowersCapitals) return false;
    const words = text.replace(this.patterns.TAG, "").replace(this.patterns.PLACEHOLDER, "").match(this.patterns.LETTERS) ?? [];
    const areCapitals = words.every((word) => /^[\p{Uppercase}\p{Lm}\u0300-\u036fßªº'’]*$/u.test(word));
    return areCapitals && words.some((word) => [...word].length >= this.of.wordInCapitals);
  }

  #lower(word, text, at) {
    const small = (part) => part.toLocaleLowerCase(caseLocale(this.source));
    const isPronoun = word === "I" || /^I['’]/.test(word);
    const before = new RegExp(this.of.patterns.BEFORE_SENTENCE, "u").test(text.slice(0, at));
    if (!before && !(isPronoun && this.source.startsWith("en"))) return small(word);
    const first = small([...word][0]);
    const [capital, ...more] = /\p{Script=Georgian}/u.test(first) ? first : upper(first, this.source);
    return capital + small(more.join("")) + small(word).slice(first.length);
  }

  // Edits with other words, outside of spans and of the edits `taken`.
  #rewritten(text, change, taken) {
    const kept = [...this.#spans(text).filter((span) => !taken.some((edit) => overlap(span, edit))), ...taken];
    const edits = [...taken];
    let place = 0;
    for (const [start, end] of [...kept.sort(inOrder), [text.length, text.length]]) {
      for (const [at, to, word] of places(this.patterns.LETTERS, text.slice(place, start))) {
        const fresh = change(word, place + at);
        if (fresh !== word) edits.push([place + at, place + to, fresh]);
      }
      place = end;
    }
    return edits.sort(inOrder);
  }

  #spans(text) {
    return places(this.patterns.SPAN, text);
  }

  #masked(text) {
    const spans = this.#spans(text);
    const names = new Map([...new Set(spans.map(([, , span]) => span))].map((span, i) => [span, this.of.placeholders[i]]));
    return spans.map(([start, end, span]) => [start, end, names.get(span)]).filter(([, , name]) => name);
  }

  #withSpans(translation, source, edits) {
    const spans = new Map(edits.map(([start, end, token]) => [token, source.slice(start, end)]));
    const left = {};
    for (const [, , token] of edits) left[token] = (left[token] ?? 0) + 1;
    return places(this.patterns.TOKEN, translation).map(([start, end, token]) => {
      left[token] = (left[token] ?? 0) - 1;
      return left[token] < 0 ? removal(translation, start, end) : [start, end, spans.get(token)];
    });
  }

  #withoutEmoji(text) {
    const edits = places(this.patterns.EMOJI_RUN, text).map(([start, end]) => this.#without(text, start, end));
    return /[\p{L}\p{N}]/u.test(edited(text, edits)) ? edits : [];
  }

  #without(text, start, end) {
    if (this.of.brackets.includes((text[start - 1] ?? "") + (text[end] ?? ""))) [start, end] = [start - 1, end + 1];
    if (!text.slice(0, start).trim()) end += this.#first("MARKS_ALONE", text.slice(end))?.[0].length ?? 0;
    const before = [...text.slice(0, start)].at(-1);
    const after = text.slice(end, end + 2);
    if (this.#is("BEGINS_WORD", after) && (before === " " || this.#is("ENDS_WORD", before)))
      return [start - (before === " "), end, " "];
    const isLast = before === " " && text[end] !== " ";
    return isLast ? [start - 1, end, ""] : removal(text, start, end);
  }

  #withEmoji(translation, source, edits) {
    const read = edited(source, edits).length;
    const found = [];
    let shift = 0;
    for (const [start, end, fresh] of edits) {
      shift += fresh.length - (end - start);
      const taken = source.slice(start, end);
      if (fresh.trim() || !this.#first("EMOJI", taken)) continue;
      if (!source.slice(0, start).trim()) {
        found.push([0, 0, taken]);
        continue;
      }
      const wanted = ((end + shift) / read) * translation.length;
      const beforeMark = source.slice(end, end + 1).trim() && !taken.endsWith(" ") && !fresh;
      const words = places(this.patterns[beforeMark ? "BARE_WORD" : "WORD"], translation);
      const spans = this.#spans(translation); // a word may end within a tag or a placeholder
      const ends = words.map(([, end]) => end).filter((end) => !spans.some(([a, b]) => a < end && end < b));
      let [place = 0] = ends.sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted));
      place += /^\p{M}*/u.exec(translation.slice(place))[0].length; // the vowel of its last letter
      const replaces = fresh === " " && translation[place] === " ";
      found.push([place, place + replaces, (taken.trim() === taken ? "" : " ") + taken.trim()]);
    }
    return found.sort((a, b) => a[0] - b[0]);
  }
}

export function edited(text, edits) {
  let [result, place] = ["", 0];
  for (const [start, end, fresh] of edits) {
    result += text.slice(place, start) + fresh;
    place = end;
  }
  return result + text.slice(place);
}

// [start, end, part] of the matches of a pattern, in order.
function places(pattern, text) {
  return [...text.matchAll(pattern)].map(({ index, 0: part }) => [index, index + part.length, part]);
}

// The edit that removes a part of a text, and the space behind it if there is one before it.
function removal(text, start, end) {
  return [start, end + (text[end] === " " && [" ", undefined].includes(text[start - 1])), ""];
}

const inOrder = (a, b) => a[0] - b[0] || a[1] - b[1];
const overlap = (a, b) => a[0] < b[1] && b[0] < a[1];
const caseLocale = (language) => (/^(tr|tur|az|aze|azj)(?![a-z])/.test(language ?? "") ? "tr" : "en");
const upper = (word, language) => word.toLocaleUpperCase(caseLocale(language));
