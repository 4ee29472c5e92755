"""The flat settings of a run as a type: the keys of a TOML file and of the commands' options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from consilience.config.augment import Transform
from consilience.config.groups import GroupConfig
from consilience.config.schedules import Schedule


class Settings(TypedDict, total=False):
    """Every key of the configuration except data, model and method, which functions take as parameters."""

    data_dir: str | None
    train: int | None
    test: int | None
    classes: int | None
    test_share: float
    image_size: int | None
    image_mode: Literal["gray", "color"] | None
    label: str | None
    kind: Literal["auto", "single-label", "multi-label", "regression"]
    owners: str | None
    drop: str | None
    test_data: str | None
    scaling: Literal["auto", "none", "pixels", "columns"]
    learners: int | None
    partition: str
    shift: str
    public: int | None
    participation: float
    aggregation: str
    clip_norm: float | None
    clip_ratio: float | None
    weight_cap: int | None
    offline: float
    reachable: str
    seed: int
    seeds: int
    partners: str
    partners_from: int
    partners_every: int
    choose: Literal["random", "relevant", "useful"]
    topology: str
    topology_every: int
    gossip_steps: int
    lost: float
    width: int | None
    rounds: int
    epochs: int
    total_epochs: int | None
    batch_size: int
    optimizer: str
    optimizer_state: Literal["keep", "reset"]
    lr: float | str | Schedule
    momentum: float
    nesterov: bool
    weight_decay: float
    clip: float | None
    augment: str | Transform
    private: Literal["none", "upload", "training", "fixed-encoder"]
    epsilon: float | None
    delta: float
    private_clip: float
    private_uploads: int | None
    eval_every: int
    validation: float
    probe: Literal["auto", "none", "linear", "scaled", "knn", "both"]
    ensemble: Literal["auto", "on", "off"]
    metrics: str | Sequence[str]
    watch: str | None
    engine: Literal["auto", "loop", "stack", "branches"]
    device: str
    workers: int | None
    cluster: str | None
    precision: Literal["auto", "float32", "bf16", "float64"]
    deterministic: bool
    groups: Mapping[str, GroupConfig | Mapping[str, Any]]
    variants: Sequence[Mapping[str, Any]]
