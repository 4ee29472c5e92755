"""A member in a separate process that does one step per input line, for tests that control the order.

A process serves one federation after another: "join" with its arguments as JSON, then steps, then "leave".
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from consilience.config.config import read_config
from consilience.data import Dataset
from consilience.data.scaling import Scaling
from consilience.methods import build_method
from consilience.methods.task_kinds import method_for_kind
from consilience.peer.connection import FederationConnection, connect_to_relay
from consilience.peer.direct.connection import connect_to_peers
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.trainer import FederatedTrainer
from consilience.simulation.records.run_folder import RunFolder
from consilience.task import SINGLE_LABEL, Target


def join(
    url: str, token: str, folder: str, config_file: str, data_file: str, public_file: str = ""
) -> FederatedTrainer:
    """url: of the relay, or the settings of a `PeerNetwork` as JSON."""
    os.chdir(Path(config_file).parent)  # a method's file may be named relative to it
    arrays = np.load(data_file)
    inputs, targets = arrays["inputs"], arrays["targets"]
    tests, (mean, std) = (arrays["test_inputs"], arrays["test_targets"]), arrays["scaling"].tolist()
    scaling, target = Scaling("pixels", (mean,), (std,)), SINGLE_LABEL
    if "target" in arrays:
        target = Target(**(found := json.loads(str(arrays["target"]))) | {"edges": tuple(found["edges"])})
    data = Dataset("local", inputs, targets, *tests, int(arrays["classes"]), scaling, target=target)
    config = read_config(Path(config_file))
    method = method_for_kind(build_method(config.method.name, config.method.settings), target.kind)
    connection: FederationConnection = (
        connect_to_peers(PeerNetwork(**json.loads(url)), folder)
        if url.startswith("{")
        else connect_to_relay(url, token, folder)
    )
    public = np.load(public_file) if public_file else None
    return FederatedTrainer(connection, config, method, data, config.learner_models[0], wait=60.0, public=public)


def main() -> None:
    trainer: FederatedTrainer | None = None
    joining: list[str] = []
    for line in sys.stdin:
        step, _, arguments = line.strip().partition(" ")
        if step == "join":
            joining = json.loads(arguments)
            trainer = join(*joining)
            print("true", flush=True)
            continue
        assert trainer is not None
        match step:
            case "start":  # before the first round, at its own pace
                trainer.introduce()
                print("true", flush=True)
            case "introduce":
                print(json.dumps(trainer.upload(train=False)), flush=True)
            case "share":
                print(json.dumps(trainer.upload()), flush=True)
            case "hear":
                result = vars(trainer.download())
                print(json.dumps({**result, "received": sorted(result["received"])}), flush=True)
            case "round":  # all of it, at its own pace
                result = vars(trainer.run_round())
                print(json.dumps({**result, "received": sorted(result["received"])}), flush=True)
            case "act":
                print(json.dumps(trainer.upload(int(arguments))), flush=True)
            case "exchange":
                trainer.exchange()
                print("true", flush=True)
            case "finish":
                result = vars(trainer.finish_round())
                print(json.dumps({**result, "received": sorted(result["received"])}), flush=True)
            case "save":
                RunFolder.create(Path(arguments), read_config(Path(joining[3]))).append(["{}"])
                trainer.save(Path(arguments))
                print("true", flush=True)
            case "resume":
                print(json.dumps(trainer.resume(Path(arguments))), flush=True)
            case "rejoin":
                trainer.close()
                trainer = join(*joining)
                print("true", flush=True)
            case "leave":
                trainer.close()
                trainer = None
                print("true", flush=True)


if __name__ == "__main__":
    main()
