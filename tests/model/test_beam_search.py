"""`generate` against fairseq's beam search.

The two searches agree under `early_stopping=True` (a sentence is done when as many hypotheses as beams are finished,
fairseq's rule) and with scores divided by (number of tokens, `</s>` counted) ** length_penalty.
"""

import json
import re

import pytest
from support.reference import FIXTURES, Fixture


@pytest.mark.parametrize("name", ["trained_resi_dual", "trained_post_ln"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_best_hypotheses_and_scores(name, attention):
    fixture = Fixture(name)
    model = fixture.model(attention)
    searches = json.loads((FIXTURES / f"beam_{name}.json").read_text())["hypotheses"]
    for search, official in searches.items():
        beams, penalty = re.fullmatch(r"beam(\d+)_lenpen([\d.]+)", search).groups()
        settings = {"length_penalty": float(penalty), "early_stopping": True} if int(beams) > 1 else {}
        found = model.generate(
            input_ids=fixture.source,
            attention_mask=fixture.source.ne(1),
            num_beams=int(beams),
            num_return_sequences=int(beams),
            max_new_tokens=21,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        for i, hypotheses in enumerate(official):
            row = found.sequences[i * int(beams)][1:].tolist()
            best = hypotheses[0]
            assert row[: len(best["tokens"])] == best["tokens"], (search, i)
            assert set(row[len(best["tokens"]) :]) <= {1}
            if int(beams) > 1:
                assert found.sequences_scores[i * int(beams)].item() == pytest.approx(best["score"], abs=1e-5)
