// Read [{site, address, shortlist, ids, texts, encode, read, spaces, beams, options}] from standard input; write what the translator of each site makes of
// them, or the message of its error. The files of a model come from the address, if there is one.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const results = [];
for (const { site, address, shortlist, ids = [], texts = [], encode = [], read = [], spaces = [], beams = 1, options = {} } of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    const folder = pathToFileURL(site + "/");
    const { Translator } = await import(new URL("translator.js", folder));
    const { edited } = await import(new URL("text.js", folder));
    const translator = await Translator.load(address ?? folder, { shortlist });
    results.push({
      languages: translator.languages,
      ids: ids.map((row) => translator.search(row, undefined, beams)),
      encoded: encode.map((text) => translator.encode(text)),
      read: read.map(([text, translation]) => {
        const { texts: own, model } = translator;
        return [edited(text, own.edits(text)), own.kept(text), own.restored(translation, text, model.targets[0].language)];
      }),
      spaces: spaces.map((row) => translator.texts.spaceBetween(...row)),
      texts: await translator.translate(texts, { beams, ...options }),
    });
  } catch (error) {
    results.push({ error: error.message });
  }
}
console.log(JSON.stringify(results));
