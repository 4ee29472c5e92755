"""`consilience export` and `consilience predict`: take trained models out of a run, and use them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from consilience.task import AnswerKind


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, or of one method of a comparison")],
    out: Annotated[Path, typer.Option(help="folder to write; without --learner each learner gets one in it")],
    learner: Annotated[int | None, typer.Option(min=0, help="this learner's model only (default: of all)")] = None,
    seed: Annotated[int | None, typer.Option(help="models of this seed (default: the first)")] = None,
    variant: Annotated[int | None, typer.Option(min=0, help="of a sweep's run, the models of this setting")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="after the best round by validation accuracy, instead of the last round")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="write model.onnx, and own_answer.onnx, as well; needs the extra `onnx`")
    ] = False,
) -> None:
    """Write the trained models of a run: weights, and all that is needed to use them elsewhere."""
    from consilience.simulation.result import Result

    result = Result.load(run)
    result = result if variant is None else result.variant(variant)
    written = result.export(out, learner=learner, seed=seed, round="best" if best else "last", onnx=onnx)
    for folder in written:
        print(folder)
    use = f"consilience predict {written[0]} DATA, or in Python load_model({str(written[0])!r})"
    print(f"use a model with {use}", file=sys.stderr)


def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="an exported model")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="a folder of images, an .npz file, a table (CSV), or the name of a data set, for its test samples",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="the CSV file to write (default: standard output)")] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder with the files of a named data set")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="of a table, the column with the class, if it has one")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="own|common",
            help="the learner's answer for data like its own, or for everybody's (default: own, if the model has it)",
        ),
    ] = None,
) -> None:
    """Predict the classes of samples with an exported model, as a CSV table."""
    from consilience.export.predict import predict_samples

    predictions = predict_samples(
        folder, data, directory=data_dir, label=label, answer=cast("AnswerKind | None", answer)
    )
    text = predictions.csv()
    if out is None:
        sys.stdout.write(text)
    else:
        from consilience.files import replace_file, report_write_errors

        with report_write_errors(out, "choose another file"):
            replace_file(out, text.encode())
        print(f"the predictions are {out}")
    print(predictions.describe(), file=sys.stderr)
