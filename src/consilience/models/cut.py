"""A model in two parts: `device`, which ends in a cut layer, and `server`, which reads what that layer gives.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> model = cut(net, at="2")
    >>> sorted(model.parts["server"])
    ['classifier.bias', 'classifier.weight', 'features.model.3.bias', 'features.model.3.weight']

What the cut layer gives, z, is the only way from the one part to the other; that is tried before anything is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, ConsilienceError, UnknownName
from consilience.models.from_file import failure
from consilience.models.split import Tap, TappedFeatures, to_split_model
from consilience.models.split_model import SplitModel
from consilience.randomness import uniform
from consilience.task import DEVICE, SERVER, names_in_part

_TRIED = 2  # samples


def cut(model: nn.Module, at: str, *, device: Sequence[str] = (), server: Sequence[str] = ()) -> SplitModel:
    """The model with a cut after the layer `at`: what is computed up to there is `device`, the rest is `server`.

    model: as you have it; it is not changed, and its parameters are shared. Where it has no `features` and linear
    `classifier` of its own it is split at its last linear layer, as `split` does.
    at: the layer's name as in `model.named_modules()`.
    device, server: names or globs of what belongs to each part, where modules are not registered in the order they are
    used. What one of them leaves open is the other's, and both together must be the whole model.

        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        >>> cut(net, at="1").cut
        'features.model.1'
    """
    whole = to_split_model(model)
    halved = SplitModel(whole.features, whole.classifier, whole.bound)
    halved.cut = _layer(halved, at)
    halved.parts = _parts(halved, device, server)
    if not any(name in halved.parts[DEVICE] for name, _ in halved.named_parameters()):
        raise ConfigurationError(
            f"nothing that is learned lies before a cut after {at!r}, so z would be the inputs themselves; cut later"
        )
    return halved


def _layer(model: SplitModel, at: str) -> str:
    """The name a layer has in the split model."""
    layers = [name for name, _ in model.named_modules() if name]
    tapped = isinstance(model.features, TappedFeatures)  # then the names are those of the model inside it
    inside = "features.model." if tapped else "features."
    for name in (f"{inside}{at}", at) if tapped else (at, f"{inside}{at}"):
        if name not in layers or (tapped and name in ("features", "features.model")):
            continue
        if _makes_logits(model, name):
            raise ConfigurationError(
                f"a cut after {at!r}, the layer that makes the logits, leaves nothing for the server; name a layer "
                f"before it"
            )
        return name
    known = [name.removeprefix(inside) for name in layers if name.startswith(inside) and not _makes_logits(model, name)]
    raise UnknownName("layer to cut after", at, known)


def _makes_logits(model: SplitModel, name: str) -> bool:
    """Whether a layer is the one that makes the logits, or has it inside."""
    module = model.get_submodule(name)
    return module is model.classifier or any(isinstance(inner, Tap) for inner in module.modules())


def _parts(model: SplitModel, device: Sequence[str], server: Sequence[str]) -> dict[str, frozenset[str]]:
    """Names of parameters and buffers by part; refuses what is in both or in neither."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    if not device and not server:
        mine = set(_registered_before(model, names))
        return {DEVICE: frozenset(mine), SERVER: frozenset(names) - mine}
    found = {DEVICE: _named(model, names, DEVICE, device), SERVER: _named(model, names, SERVER, server)}
    if not device or not server:
        given, other = (DEVICE, SERVER) if device else (SERVER, DEVICE)
        found[other] = frozenset(names) - found[given]
    both, neither = found[DEVICE] & found[SERVER], set(names) - found[DEVICE] - found[SERVER]
    for wrong, said in ((both, "is in both parts"), (neither, "is in neither part")):
        if wrong:
            raise ConfigurationError(
                f"{min(wrong)!r} {said}; device and server together are the whole model, and no weight is in both"
            )
    return found


def _named(model: SplitModel, names: Sequence[str], part: str, globs: Sequence[str]) -> frozenset[str]:
    if isinstance(globs, str):
        raise ConfigurationError(f"{part} is {globs!r}; give a list of names, [{globs!r}]")
    found, own = set[str](), _own_names(model, names)
    for glob in globs:
        theirs, ours = [own[name] for name in names_in_part(glob, own)], names_in_part(glob, names)
        covered = theirs or ours if isinstance(model.features, TappedFeatures) else ours or theirs
        if not covered:
            raise ConfigurationError(f"{part}: {glob!r} covers nothing of the model; it has {', '.join(names)}")
        found |= set(covered)
    return frozenset(found)


def _own_names(model: SplitModel, names: Sequence[str]) -> dict[str, str]:
    """Names by what the model that was given calls them; of one with `features` of its own, by their names there."""
    inside, logits = "features.", "classifier."
    if isinstance(model.features, TappedFeatures):
        inside, logits = "features.model.", f"{model.features.at}."
    return {n.removeprefix(inside) if n.startswith(inside) else n.replace("classifier.", logits, 1): n for n in names}


def _registered_before(model: SplitModel, names: Sequence[str]) -> list[str]:
    """Names of what belongs to modules that were registered before the cut layer ended."""
    order = [name for name, _ in model.named_modules()]
    last = max(i for i, name in enumerate(order) if name == model.cut or name.startswith(f"{model.cut}."))
    before = set(order[: last + 1])
    return [name for name in names if name.rpartition(".")[0] in before]


def cut_shape(model: SplitModel, shape: tuple[int, ...], called: str) -> tuple[int, ...]:
    """The shape of z for a sample, found by running zeros through the model; refuses parts that are not apart.

    called: what messages call the model.
    """
    some = next(model.parameters())
    inputs = torch.zeros((_TRIED, *shape), device=some.device, dtype=some.dtype)
    was = model.training
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _in_words(called, shape):
        model.eval()
        try:
            z = _only(_run(model, inputs)[1], called, model.cut or "")
            _refuse_reach(model, z, SERVER, called, "works before the cut")
            through, _ = _run(model, inputs, instead=lambda z: z.detach())
            _refuse_reach(model, through, DEVICE, called, "reaches the logits past the cut")
            _refuse_bypass(model, inputs, z.detach(), called)
        finally:
            model.train(was)
    return tuple(z.shape[1:])


@contextmanager
def _in_words(called: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Say of whatever somebody's own code raises which model cannot take which inputs."""
    try:
        yield
    except ConsilienceError:
        raise
    except Exception as error:
        said = str(error) if isinstance(error, RuntimeError | ValueError | IndexError) else failure(error)
        raise ConfigurationError(f"model {called!r} cannot take inputs of the shape {shape}: {said}") from error


def _refuse_bypass(model: SplitModel, inputs: Tensor, z: Tensor, called: str) -> None:
    """Refuse a server that looks at inputs past the cut: with one z, other inputs must give the same logits."""
    first = _given(model, inputs, z)
    for other in _others(inputs):
        try:
            told = _given(model, other, z)
        except Exception:
            if torch.equal(other, other.round().clamp(0, 1)):
                raise
            continue  # a model of codes takes no fractions
        if not torch.equal(first, told):
            raise ConfigurationError(
                f"{called}: inputs reach the logits past the cut layer {model.cut!r}, which must be the only way from "
                f"the device to the server; cut elsewhere, or let the server read z alone"
            )


@torch.no_grad()
def _given(model: SplitModel, inputs: Tensor, z: Tensor) -> Tensor:
    """Logits of inputs, with this z in the place of theirs."""
    return _run(model, inputs, instead=lambda _: z.clone())[0]


def _others(zeros: Tensor) -> Iterator[Tensor]:
    """Inputs to try: ones, zeros and ones in turn and at random, which codes of characters may be; and fractions.

    What is alike for two of them, as an image less its mean is for two that are of one color, is not for another.
    """
    places = torch.arange(zeros.numel(), device=zeros.device)
    chance = uniform("cut", places).to(zeros)
    yield torch.ones_like(zeros)
    yield (places % 2).to(zeros).reshape(zeros.shape)
    yield chance.round().reshape(zeros.shape)
    yield (4 * chance - 2).reshape(zeros.shape)


def _run(
    model: SplitModel, inputs: Tensor, instead: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and what the cut layer gave each time it was called; instead: what is handed on in its place."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: object, output: Tensor) -> Tensor | None:
        seen.append(output)
        return instead(output) if instead is not None and isinstance(output, Tensor) else None

    hook = model.get_submodule(model.cut or "").register_forward_hook(keep)
    try:
        return model(inputs), seen
    finally:
        hook.remove()


def _only(seen: Sequence[Tensor], called: str, layer: str) -> Tensor:
    """What a cut layer gave, called once for a batch."""
    if len(seen) != 1:
        raise ConfigurationError(
            f"{called}: the cut layer {layer!r} was called {len(seen)} times in one forward pass, and z is what it "
            f"gives once; cut after another layer"
        )
    if not isinstance(seen[0], Tensor) or seen[0].ndim < 2 or len(seen[0]) != _TRIED:
        what = f"the shape {tuple(seen[0].shape)}" if isinstance(seen[0], Tensor) else f"a {type(seen[0]).__name__}"
        raise ConfigurationError(
            f"{called}: the cut layer {layer!r} gives {what} for {_TRIED} samples; it must give a tensor whose first "
            f"axis is the samples: cut after a layer that does, such as one that takes the output of an LSTM apart"
        )
    if not math.prod(seen[0].shape[1:]):
        raise ConfigurationError(f"{called}: the cut layer {layer!r} gives nothing for a sample; cut after another")
    return seen[0]


def _refuse_reach(model: SplitModel, output: Tensor, part: str, called: str, how: str) -> None:
    """Refuse weights of a part that an output hangs on."""
    weights = {n: p for n, p in model.named_parameters() if n in model.parts[part] and p.requires_grad}
    if not weights or not output.requires_grad:
        return
    found = torch.autograd.grad(output.sum(), list(weights.values()), allow_unused=True)
    wrong = [name for name, gradient in zip(weights, found, strict=True) if gradient is not None]
    if wrong:
        other = DEVICE if part == SERVER else SERVER
        raise ConfigurationError(
            f"{called}: {wrong[0]!r} is of the part {part!r} and {how} {model.cut!r}; cut elsewhere, or say which "
            f"weights are {other}'s, cut(model, at=..., {other}=[...])"
        )
