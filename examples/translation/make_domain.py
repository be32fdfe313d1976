"""Write a small corpus of a new domain: generated English-German sentences, the German as in a headline.

python make_domain.py data/headlines
"""

import argparse
from pathlib import Path

from residual_hf.data.synthetic import generate_corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=4000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in generate_corpus({"train": options.pairs, "valid": 100}, seed=7).items():
        english = "".join(f"{source}\n" for source, _ in pairs)
        german = "".join(f"+++ {target.rstrip('.')} +++\n" for _, target in pairs)
        (options.folder / f"{name}.en").write_text(english, encoding="utf-8")
        (options.folder / f"{name}.de").write_text(german, encoding="utf-8")


if __name__ == "__main__":
    main()
