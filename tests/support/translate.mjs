// Read [{site, ids, texts, beams, options}] from standard input; write what the translator of each site makes of them, or
// the message of its error.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const results = [];
for (const { site, ids = [], texts = [], encode = [], beams = 1, options = {} } of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    const folder = pathToFileURL(site + "/");
    const { Translator } = await import(new URL("translator.js", folder));
    const translator = await Translator.load(folder);
    results.push({
      languages: translator.languages,
      ids: ids.map((row) => translator.search(row, undefined, beams)),
      encoded: encode.map((text) => translator.encode(text)),
      texts: await translator.translate(texts, { beams, ...options }),
    });
  } catch (error) {
    results.push({ error: error.message });
  }
}
console.log(JSON.stringify(results));
