"""Decoding speed on a CPU with a lexical shortlist, compared with the whole vocabulary.

    python examples/benchmarks/shortlist.py --size base --tokens 700

Weights, sentences and lists are random. See README.md.
"""

import argparse
from functools import partial

import torch
from decode_speed import CASES, DTYPES, GENERATED, SIZES, SOURCE_LENGTH, make_model, measure, print_table, summarize

from residual_hf import native


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding speed on a CPU with a lexical shortlist.")
    parser.add_argument("--size", choices=SIZES, default="iwslt")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "int8"])
    parser.add_argument("--tokens", type=int, default=700, help="in the list of each sentence")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, generator = make_model(options.size, "post_ln"), torch.Generator().manual_seed(1)
    size, end = model.config.vocab_size, model.config.eos_token_id
    print(f"vocabulary of {size}, {options.tokens} tokens in a list")
    for case, (sentences, beams) in CASES.items():
        sources = torch.randint(4, size, (sentences, SOURCE_LENGTH), generator=generator)
        lists = [torch.randperm(size, generator=generator)[: options.tokens].numpy() for _ in range(sentences)]
        for tokens in lists:
            tokens[0] = end
        lengths = {"min_new_tokens": GENERATED, "max_new_tokens": GENERATED, "num_beams": beams, "do_sample": False}
        for dtype in options.dtypes if beams else ():
            run = partial(model.generate, sources, **lengths, decoding_dtype=dtype)
            name = f"{dtype}, all tokens"
            runs = {name: run, f"{dtype}, shortlist": partial(run, token_lists=lists)}
            results = summarize(measure(runs, options.repeats), name)
            for row in results.values():
                row["isa"] = native.instruction_set()
            print_table(case, results, name)


if __name__ == "__main__":
    main()
