"""A Gradio Space that translates with one model. The variable MODEL names it; the checkpoint has the model code."""

import os
import re

import gradio
from sentencex import segment
from transformers import pipeline

LONGEST = 5000  # characters
MODEL = os.environ["MODEL"]

translator = pipeline("translation", model=MODEL, trust_remote_code=True)
config = translator.model.config
SOURCE = config.source_lang or "en"  # selects the rules of sentence ends
targets = sorted(translator.texts.tags)


def translate(text: str, language: str | None) -> str:
    """Sentence by sentence, with the line breaks of the text."""
    text = re.sub(r"[^\S\n\r ]", " ", text)  # sentencex panics at some spaces before a full stop
    pieces = [piece for line in text[:LONGEST].splitlines(keepends=True) for piece in segment(SOURCE, line)]
    sentences = [piece.strip() for piece in pieces]
    wanted = [sentence for sentence in sentences if sentence]
    found = translator(wanted, tgt_lang=language, batch_size=16, truncation=True) if wanted else []
    translations = dict(zip(wanted, (result["translation_text"] for result in found), strict=True))
    return "".join(
        piece.replace(sentence, translations[sentence], 1) if sentence else piece
        for piece, sentence in zip(pieces, sentences, strict=True)
    )


demo = gradio.Interface(
    translate,
    inputs=[
        gradio.Textbox(label="Text", lines=8, max_length=LONGEST),
        gradio.Dropdown(targets or [config.target_lang], label="Language", visible=len(targets) > 1),
    ],
    outputs=gradio.Textbox(label="Translation", lines=8),
    title=MODEL.rstrip("/").rpartition("/")[2],
    flagging_mode="never",
)

if __name__ == "__main__":
    demo.launch()
