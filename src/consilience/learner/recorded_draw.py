"""What building a model draws, recorded once and repeated for other seeds.

Building a model for every learner spends ten times as long on making modules as on drawing numbers. A recording has the
operations of torch by which one build fills its tensors. Repeated with a generator of another seed, on the same memory,
they give the bits that a build with that seed gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from consilience.learner.state import Tensors

_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")


class NotRepeatable(Exception):
    """An operation whose repetition with another seed may not be what a build with that seed does."""


@dataclass(frozen=True)
class _Value:
    """The place of a tensor in the memory of a repetition."""

    place: int


@dataclass(frozen=True)
class _Step:
    """One operation: its arguments name tensors by their places, and `results` are the places of what it returns."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    results: tuple[int, ...]
    once: bool  # memory, and views of it: the same in every repetition
    draws: bool


@dataclass
class RecordedDraw:
    """The operations of a build, and where the named tensors are at its end."""

    steps: list[_Step]
    constants: dict[int, Tensor]  # tensors that were there before, or that came from no operation
    changed: set[int]  # those of them that are changed in place
    places: dict[str, int]
    count: int

    def memory(self) -> DrawMemory:
        """Memory for repetitions, one after the other; threads need one each."""
        return DrawMemory(self)


@dataclass
class DrawMemory:
    """Tensors that a repetition fills."""

    recorded: RecordedDraw
    values: list[Any] = field(init=False)
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.values = [None] * self.recorded.count
        for place, constant in self.recorded.constants.items():
            self.values[place] = constant.clone()
        for step in (step for step in self.recorded.steps if step.once):
            self._run(step)
        self._again = [step for step in self.recorded.steps if not step.once]

    def draw(self, seed: int) -> Tensors:
        """The named tensors as a build with this seed has them; the next draw overwrites them."""
        self.generator.manual_seed(seed)
        for place in self.recorded.changed:
            self.values[place].copy_(self.recorded.constants[place])
        for step in self._again:
            self._run(step)
        return {name: self.values[place] for name, place in self.recorded.places.items()}

    def _run(self, step: _Step) -> None:
        named = {name: self._given(value) for name, value in step.named.items()}
        if step.draws:
            named["generator"] = self.generator
        found = step.run(*(self._given(value) for value in step.arguments), **named)
        for place, tensor in zip(step.results, _tensors(found), strict=True):
            self.values[place] = tensor

    def _given(self, value: Any) -> Any:
        if isinstance(value, _Value):
            return self.values[value.place]
        if isinstance(value, list | tuple):
            return type(value)(self._given(each) for each in value)
        return value


def record_draw(build: Callable[[], tuple[Tensors, Tensors]], seed: int) -> RecordedDraw:
    """Record a build, which returns parameters and buffers by name; NotRepeatable where that is impossible."""
    recorder = _Recorder()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        with recorder:
            parameters, buffers = build()
    places = {name: recorder.place_of(tensor) for name, tensor in {**parameters, **buffers}.items()}
    return RecordedDraw(recorder.steps, recorder.constants, recorder.changed, places, recorder.count)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations as they are run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.constants: dict[int, Tensor] = {}
        self.changed: set[int] = set()
        self.count = 0
        self._places: dict[int, int] = {}  # by id of a tensor
        self._roots: dict[int, tuple[int, torch.dtype]] = {}  # by address of memory, the first tensor that used it
        self._static: set[int] = set()
        self._random: set[int] = set()  # addresses of memory that depends on what was drawn
        self._kept: list[Tensor] = []  # so that ids and addresses stay those of one tensor

    def record(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operation, and record it: torch calls this in the place of every operation."""
        named = dict(kwargs or {})
        random = any(_address(tensor) in self._random for tensor in _tensors([*args, *named.values()]))
        if _DEPENDS_ON_VALUES & set(func.tags):
            if random:
                raise NotRepeatable(f"{func} of numbers that were drawn")
            return func(*args, **named)  # the same in every build
        places = tree_map_only(Tensor, lambda t: _Value(self.place_of(t)), [tuple(args), named])
        found = func(*args, **named)
        self._note(func, places[0], places[1], found)
        if random or torch.Tag.nondeterministic_seeded in func.tags:
            self._random |= {_address(t) for t in _tensors([found, *args] if func._schema.is_mutable else found)}
        return found

    def place_of(self, tensor: Tensor) -> int:
        """The place of a tensor: a known one, a view of known memory, or a constant."""
        if id(tensor) in self._places:
            return self._places[id(tensor)]
        place, root = self._new(tensor), self._roots.get(_address(tensor))
        if root is None:
            self.constants[place] = tensor.detach().clone()
            self._roots[_address(tensor)] = place, tensor.dtype
        elif root[1] != tensor.dtype or root[0] in self.constants:
            raise NotRepeatable("memory that is seen in two ways")
        else:
            view = (_Value(root[0]), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            self._add(_Step(torch.as_strided, view, {}, (place,), root[0] in self._static, draws=False))
        return place

    def _note(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], found: Any) -> None:
        written = {argument.name for argument in func._schema.arguments if _written(argument)}
        names = [argument.name for argument in func._schema.arguments]
        changed = [v for n, v in (*zip(names, args, strict=False), *named.items()) if n in written]
        used = [v.place for v in _values((args, named))]
        self.changed |= {value.place for value in _values(changed)} & self.constants.keys()
        draws = torch.Tag.nondeterministic_seeded in func.tags
        results = tuple(self._result(t, new=not changed) for t in _tensors(found))
        empty, view = func._schema.name in _EMPTY, all(_shared(each) for each in func._schema.returns)
        once = empty or (view and not written and all(place in self._static for place in used))
        self._add(_Step(_drawing(func, names, named) if draws else func, args, named, results, once, draws))

    def _result(self, tensor: Tensor, new: bool) -> int:
        if not new and id(tensor) not in self._places:
            raise NotRepeatable("an operation in place that returns another tensor")
        if id(tensor) in self._places:
            return self._places[id(tensor)]
        place = self._new(tensor)
        self._roots.setdefault(_address(tensor), (place, tensor.dtype))
        return place

    def _new(self, tensor: Tensor) -> int:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise NotRepeatable(f"a tensor on {tensor.device} of layout {tensor.layout}")
        self._places[id(tensor)] = place = self.count
        self._kept.append(tensor)
        self.count += 1
        return place

    def _add(self, step: _Step) -> None:
        self.steps.append(step)
        if step.once:
            self._static.update(step.results)


# Assigned after the class is made: torch would else wrap it, and import its compiler, which takes seconds.
_Recorder.__torch_dispatch__ = _Recorder.record  # type: ignore[assignment, method-assign]


def _drawing(func: Any, names: list[str], named: dict[str, Any]) -> Any:
    """The operation in the form that takes a generator."""
    if named.pop("generator", None) is not None:
        raise NotRepeatable(f"{func} has a generator of its own")
    if "generator" in names:
        return func
    if "generator" not in func.overloadpacket.overloads() or func._overloadname != "default":
        raise NotRepeatable(f"{func} takes no generator")
    return func.overloadpacket.generator


def _address(tensor: Tensor) -> int:
    """Where its memory begins; a number of its own for a tensor without any."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _shared(result: Any) -> bool:
    """Whether what an operation returns is a view of an argument."""
    return result.alias_info is not None


def _tensors(found: Any) -> list[Tensor]:
    """The tensors among what an operation was given or returned."""
    if isinstance(found, list | tuple):
        return [tensor for each in found for tensor in _tensors(each)]
    return [found] if isinstance(found, Tensor) else []


def _values(nested: Any) -> list[_Value]:
    if isinstance(nested, _Value):
        return [nested]
    if isinstance(nested, dict):
        nested = list(nested.values())
    return [value for each in nested for value in _values(each)] if isinstance(nested, list | tuple) else []
