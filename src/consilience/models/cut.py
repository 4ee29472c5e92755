"""A model in two parts: `device`, which ends in the cut layer, and `server`, which reads that layer's output.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> model = cut(net, at="2")
    >>> sorted(model.parts["server"])
    ['classifier.bias', 'classifier.weight', 'features.model.3.bias', 'features.model.3.weight']

The output of the cut layer, z, is the only connection between the parts; this is checked before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, ConsilienceError, UnknownName
from consilience.models.from_file import failure
from consilience.models.split import FeaturesBeforeLayer, LayerInputRecorder, given_names, to_split_model
from consilience.models.split_model import SplitModel
from consilience.randomness import uniform
from consilience.task import DEVICE, SERVER, names_in_part

_TEST_SAMPLES = 2


def cut(model: nn.Module, at: str, *, device: Sequence[str] = (), server: Sequence[str] = ()) -> SplitModel:
    """The model with a cut after the layer `at`: everything up to there is `device`, the rest is `server`.

    model: it is not changed, and the result shares its parameters. Without `features` and a linear `classifier` it is
    split at its last linear layer, as `split` does.
    at: the layer's name as in `model.named_modules()`.
    device, server: names or globs of the weights of each part, where modules are not registered in the order they are
    used. If only one is given, the rest belongs to the other; together they must cover the whole model.

        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        >>> cut(net, at="1").cut
        'features.model.1'
    """
    whole = to_split_model(model)
    divided = SplitModel(whole.features, whole.classifier, whole.bound)
    if whole.original is not whole:
        divided.made_from(whole.original)
    divided.cut = _layer(divided, at)
    divided.parts = _parts(divided, device, server)
    if not any(name in divided.parts[DEVICE] for name, _ in divided.named_parameters()):
        raise ConfigurationError(
            f"a cut after {at!r} has no trainable parameters before it, so z would be the inputs themselves; cut later"
        )
    return divided


def _layer(model: SplitModel, at: str) -> str:
    """The name of a layer in the split model."""
    layers = [name for name, _ in model.named_modules() if name]
    wrapped = isinstance(model.features, FeaturesBeforeLayer)  # then names are those of the model inside it
    inside = "features.model." if wrapped else "features."
    for name in (f"{inside}{at}", at) if wrapped else (at, f"{inside}{at}"):
        if name not in layers or (wrapped and name in ("features", "features.model")):
            continue
        if _computes_logits(model, name):
            raise ConfigurationError(
                f"a cut after {at!r}, the layer that computes the logits, leaves nothing for the server; name an "
                f"earlier layer"
            )
        return name
    known = [
        name.removeprefix(inside) for name in layers if name.startswith(inside) and not _computes_logits(model, name)
    ]
    raise UnknownName("layer to cut after", at, known)


def _computes_logits(model: SplitModel, name: str) -> bool:
    """Whether a layer is, or contains, the one that computes the logits."""
    module = model.get_submodule(name)
    return module is model.classifier or any(isinstance(inner, LayerInputRecorder) for inner in module.modules())


def _parts(model: SplitModel, device: Sequence[str], server: Sequence[str]) -> dict[str, frozenset[str]]:
    """Names of parameters and buffers by part; a name in both or in neither is refused."""
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
    found, own = set[str](), {theirs: ours for ours, theirs in given_names(model, names).items()}
    for glob in globs:
        theirs, ours = [own[name] for name in names_in_part(glob, own)], names_in_part(glob, names)
        covered = theirs or ours if isinstance(model.features, FeaturesBeforeLayer) else ours or theirs
        if not covered:
            raise ConfigurationError(f"{part}: {glob!r} matches nothing in the model; it has {', '.join(names)}")
        found |= set(covered)
    return frozenset(found)


def _registered_before(model: SplitModel, names: Sequence[str]) -> list[str]:
    """Names in modules registered up to the cut layer."""
    order = [name for name, _ in model.named_modules()]
    last = max(i for i, name in enumerate(order) if name == model.cut or name.startswith(f"{model.cut}."))
    before = set(order[: last + 1])
    return [name for name in names if name.rpartition(".")[0] in before]


def cut_shape(model: SplitModel, shape: tuple[int, ...], called: str) -> tuple[int, ...]:
    """The shape of z for one sample, found by running zeros through the model; refuses parts that are not separate.

    called: the model's name in error messages.
    """
    some = next(model.parameters())
    inputs = torch.zeros((_TEST_SAMPLES, *shape), device=some.device, dtype=some.dtype)
    was = model.training
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _name_model_in_errors(called, shape):
        model.eval()
        try:
            z = _single(_run(model, inputs)[1], called, model.cut or "")
            _refuse_reach(model, z, SERVER, called, "is used before the cut")
            through, _ = _run(model, inputs, instead=lambda z: z.detach())
            _refuse_reach(model, through, DEVICE, called, "reaches the logits around the cut")
            _refuse_bypass(model, inputs, z.detach(), called)
        finally:
            model.train(was)
    return tuple(z.shape[1:])


@contextmanager
def _name_model_in_errors(called: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn any exception of the model's code into an error that names the model and the inputs' shape."""
    try:
        yield
    except ConsilienceError:
        raise
    except Exception as error:
        said = str(error) if isinstance(error, RuntimeError | ValueError | IndexError) else failure(error)
        raise ConfigurationError(f"model {called!r} cannot take inputs of the shape {shape}: {said}") from error


def _refuse_bypass(model: SplitModel, inputs: Tensor, z: Tensor, called: str) -> None:
    """Refuse a server that reads the inputs around the cut: with the same z, other inputs must give the same logits."""
    first = _logits_with_z(model, inputs, z)
    for other in _test_inputs(inputs):
        try:
            logits = _logits_with_z(model, other, z)
        except Exception:
            if torch.equal(other, other.round().clamp(0, 1)):
                raise
            continue  # a model of character codes takes no fractions
        if not torch.equal(first, logits):
            raise ConfigurationError(
                f"{called}: inputs reach the logits around the cut layer {model.cut!r}, which must be the only "
                f"connection from device to server; cut elsewhere, or let the server read z alone"
            )


@torch.no_grad()
def _logits_with_z(model: SplitModel, inputs: Tensor, z: Tensor) -> Tensor:
    """Logits of inputs, with this z in place of their own."""
    return _run(model, inputs, instead=lambda _: z.clone())[0]


def _test_inputs(zeros: Tensor) -> Iterator[Tensor]:
    """Inputs to try: ones, alternating and random zeros and ones, which are valid character codes; and fractions.

    A model that ignores the difference between two of them, such as an image's mean, sees another difference.
    """
    positions = torch.arange(zeros.numel(), device=zeros.device)
    random = uniform("cut", positions).to(zeros)
    yield torch.ones_like(zeros)
    yield (positions % 2).to(zeros).reshape(zeros.shape)
    yield random.round().reshape(zeros.shape)
    yield (4 * random - 2).reshape(zeros.shape)


def _run(
    model: SplitModel, inputs: Tensor, instead: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the outputs of the cut layer; instead: a function that replaces its output."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, given: object, output: Tensor) -> Tensor | None:
        outputs.append(output)
        return instead(output) if instead is not None and isinstance(output, Tensor) else None

    hook = model.get_submodule(model.cut or "").register_forward_hook(record)
    try:
        return model(inputs), outputs
    finally:
        hook.remove()


def _single(outputs: Sequence[Tensor], called: str, layer: str) -> Tensor:
    """The single output of the cut layer."""
    if len(outputs) != 1:
        raise ConfigurationError(
            f"{called}: the cut layer {layer!r} was called {len(outputs)} times in one forward pass, and z must be "
            f"its only output; cut after another layer"
        )
    z = outputs[0]
    if not isinstance(z, Tensor) or z.ndim < 2 or len(z) != _TEST_SAMPLES:
        what = f"the shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"a {type(z).__name__}"
        raise ConfigurationError(
            f"{called}: the cut layer {layer!r} returns {what} for {_TEST_SAMPLES} samples; it must return a tensor "
            f"whose first axis is the samples: cut after a layer that does, such as one that selects an LSTM's output"
        )
    if not math.prod(z.shape[1:]):
        raise ConfigurationError(f"{called}: the cut layer {layer!r} returns an empty tensor; cut after another")
    return z


def _refuse_reach(model: SplitModel, output: Tensor, part: str, called: str, how: str) -> None:
    """Refuse weights of a part that an output depends on."""
    weights = {n: p for n, p in model.named_parameters() if n in model.parts[part] and p.requires_grad}
    if not weights or not output.requires_grad:
        return
    found = torch.autograd.grad(output.sum(), list(weights.values()), allow_unused=True)
    wrong = [name for name, gradient in zip(weights, found, strict=True) if gradient is not None]
    if wrong:
        other = DEVICE if part == SERVER else SERVER
        raise ConfigurationError(
            f"{called}: {wrong[0]!r} belongs to part {part!r} and {how} {model.cut!r}; cut elsewhere, or name the "
            f"weights of {other}, cut(model, at=..., {other}=[...])"
        )
