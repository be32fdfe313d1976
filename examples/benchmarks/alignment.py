"""How well word alignments from cross-attention find words and place tags, by layer, on a parallel text.

Links that count as right are those of words that occur once on both sides and are

- `same`: the same number or name, or another identical word of five letters,
- `translated`: each other's only translation in a training text (Dice coefficient of at least 0.6, 20 sentences).
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from residual_hf.data.text_files import iter_lines
from residual_hf.generation.aligned_pair import SAME
from residual_hf.generation.markup import Inline, SplitBlocks
from residual_hf.generation.translator import Hypothesis, Translator
from residual_hf.model.alignment import AlignedTokens, Alignment, align, token_spans, with_eager_attention

WORD = re.compile(r"\w(?:[\w.,'’-]*\w)?")
LEAST_DICE, LEAST_SENTENCES = 0.6, 20
Span = tuple[int, int]


def once(text: str) -> dict[str, Span]:
    """Words that occur once in a text, and where."""
    found = defaultdict(list)
    for word in WORD.finditer(text):
        found[word[0]].append(word.span())
    return {word: spans[0] for word, spans in found.items() if len(spans) == 1}


def dictionary(sources: Iterable[str], targets: Iterable[str]) -> dict[str, str]:
    """Words with one translation."""
    of_source, of_target, of_both = Counter(), Counter(), Counter()
    for source, target in zip(sources, targets, strict=True):
        left, right = ({word.lower() for word in WORD.findall(text)} for text in (source, target))
        if len(left) + len(right) <= 50:
            of_source.update(left)
            of_target.update(right)
            of_both.update((x, y) for x in left for y in right)
    best: dict[str, tuple[float, str]] = {}
    for (x, y), count in of_both.items():
        dice = 2 * count / (of_source[x] + of_target[y])
        if count >= LEAST_SENTENCES and len(x) > 2 and dice >= max(LEAST_DICE, best.get(x, (0.0, ""))[0]):
            best[x] = dice, y
    return {x: y for x, (_, y) in best.items()}


def links(source: str, target: str, words: dict[str, str]) -> dict[str, list[tuple[Span, Span]]]:
    """Pairs of places in source and target, by kind."""
    left, right = once(source), once(target)
    same = [(left[word], right[word]) for word in left if word in right and SAME.search(word)]
    left, right = once(source.lower()), once(target.lower())
    translated = [(left[w], right[words[w]]) for w in left if words.get(w, w) != w and words[w] in right]
    return {"same": same, "translated": translated}


def layer_weights(model, source: list[int], target: list[int]) -> np.ndarray:
    """Attention of each layer while a token is predicted, (layers, target tokens, source tokens)."""
    inputs = torch.tensor([[model.generation_config.decoder_start_token_id, *target]])
    with torch.no_grad():
        output = with_eager_attention(model)(
            torch.tensor([source]), decoder_input_ids=inputs, output_attentions=True, use_cache=False
        )
    return torch.stack([layer[0, :, :-1].mean(0) for layer in output.cross_attentions]).double().numpy()


def finds(part: AlignedTokens, text: tuple[str, str], link: tuple[Span, Span]) -> bool:
    """Whether the source word with the most attention of a target word is the right one."""
    left, right = ([word.span() for word in WORD.finditer(each)] for each in text)
    return left[int(part.between(left, right)[right.index(link[1])].argmax())] == link[0]


def places_tag(found: Alignment | None, text: tuple[str, str], link: tuple[Span, Span]) -> bool:
    """Whether a tag around a source word, or some, is around the right ones of the translation and no others."""
    (start, end), (first, last) = link
    block = [text[0][:start], Inline("b", [text[0][start:end]]), text[0][end:]]
    (pieces,) = SplitBlocks([block], "en", lambda sentence: True).join([Hypothesis(text[1], None, found)])
    (place,) = [place for place, piece in enumerate(pieces) if isinstance(piece, Inline)]
    return pieces[place].pieces == [text[1][first:last]] and sum(map(len, pieces[:place])) == first


def phrases(found: list[tuple[Span, Span]]) -> list[tuple[Span, Span]]:
    """Links of words that follow each other on both sides, as one."""
    ordered = sorted(found)
    pairs = zip(ordered, ordered[1:], strict=False)
    return [((a[0], d[1]), (b[0], e[1])) for (a, b), (d, e) in pairs if d[0] == a[1] + 1 and e[0] == b[1] + 1]


def measure(translator: Translator, pairs: list[tuple[str, str]], words: dict[str, str]) -> dict[str, dict]:
    model, tokenizer = translator.model, translator.tokenizer
    hits: dict[str, Counter] = defaultdict(Counter)
    totals: Counter = Counter()
    for text in pairs:
        found = links(*text, words)
        if not any(found.values()) or SplitBlocks([[text[0]]], "en", lambda sentence: True).sentences != [text[0]]:
            continue
        (source,), _ = translator.encode([text[0]])
        target = tokenizer(text_target=text[1])["input_ids"][:-1]
        if max(len(source), len(target)) >= (translator.inputs.positions or 1024):
            continue
        spans = token_spans(tokenizer, source, text[0]), token_spans(tokenizer, target, text[1], True)
        layers = layer_weights(model, source, target)
        (aligned,) = align(model, tokenizer, text[:1], text[1:], [source], [target])
        found["phrases"] = phrases(found["same"] + found["translated"])
        for kind, rows in found.items():
            for link in rows:
                totals[kind] += 1
                for number, weights in enumerate(layers, start=1):
                    part = AlignedTokens(*spans, weights, np.zeros(len(target)))
                    if kind != "phrases":
                        hits[f"words, layer {number}"][kind] += finds(part, text, link)
                if kind != "phrases":
                    hits["words"][kind] += finds(aligned.parts[0], text, link)
                hits["tags"][kind] += places_tag(aligned, text, link)
                hits["tags, order of words"][kind] += places_tag(None, text, link)
    shares = {name: {kind: round(found[kind] / totals[kind], 3) for kind in found} for name, found in hits.items()}
    return shares | {"number": totals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a model or a run")
    for flag in ("--source", "--target", "--train-source", "--train-target"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=500, help="sentences to look at (default: 500)")
    options = parser.parse_args()
    translator = Translator.from_pretrained(options.model)
    pairs = list(zip(iter_lines(options.source), iter_lines(options.target), strict=True))[: options.sentences]
    words = dictionary(iter_lines(options.train_source), iter_lines(options.train_target))
    print(json.dumps(measure(translator, pairs, words), indent=2))


if __name__ == "__main__":
    main()
