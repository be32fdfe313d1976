"""Add a target language to a trained model: a tag `<2xx>` in the vocabulary, and training on tagged text.

python add_language.py --model runs/en_de/model --language en --train train.de train.en --valid valid.de valid.en
    --keep de train.en train.de --output-dir runs/both

Pass pairs of the old language as `--keep`, they get a tag too; without them the model forgets that language.
"""

from finetune import build_parser, build_trainer, load, read
from tokenizers import AddedToken


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--language", required=True, help="the new target language, of --train and --valid")
    parser.add_argument("--keep", nargs=3, action="append", default=[], metavar=("LANGUAGE", "SOURCE", "TARGET"))
    options = parser.parse_args()
    model, tokenizer = load(options)

    languages = [options.language, *(language for language, *_ in options.keep)]
    tags = {language: f"<2{language}>" for language in languages}
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in tags.values()])
    if len(tokenizer) > model.config.vocab_size:
        model.resize_token_embeddings(len(tokenizer))  # new rows are drawn around the mean of the old ones
    if not model.config.share_encoder_decoder_embeddings:
        model.resize_decoder_token_embeddings(tokenizer.target_vocab_size)
    model.config.source_lang = model.config.target_lang = None  # the tags say it now
    model.config.language_tags = "source"

    train = read(*options.train, tag=tags[options.language])
    for language, source, target in options.keep:
        for column, lines in read(source, target, tag=tags[language]).items():
            train[column] += lines
    valid = read(*options.valid, tag=tags[options.language])
    trainer = build_trainer(model, tokenizer, train, valid, options)
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
