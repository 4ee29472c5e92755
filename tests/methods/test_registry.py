"""Methods by name: registered by a program, or by an installed package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consilience import Exchange, Prototypes, Role, build_method, register_method, simulate
from consilience.errors import ConfigurationError, UnknownName
from consilience.methods import METHODS, method_names, registry
from tests.conftest import Command


@pytest.fixture(autouse=True)
def restored_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registry after each test."""
    before = dict(METHODS)
    registry._packaged.cache_clear()
    yield
    METHODS.clear()
    METHODS.update(before)
    registry._packaged.cache_clear()


def test_function_exchange_and_class_can_be_registered() -> None:
    @register_method
    def two_prototypes(kd: float = 3.0) -> tuple[Exchange, ...]:
        """Twice the same."""
        return (Prototypes(weight=kd), Prototypes(weight=kd, name="second"))

    @register_method("twice")
    def other() -> Role:
        return Role(exchanges=two_prototypes(1.0))

    register_method("plain", Prototypes)
    register_method("ready", Prototypes(weight=7.0))
    weights = {name: [e.weight for e in build_method(name).exchanges] for name in ("two-prototypes", "twice")}
    assert weights == {"two-prototypes": [3.0, 3.0], "twice": [1.0, 1.0]}
    assert build_method("two-prototypes", {"kd": 2}).summary == "Twice the same."
    assert build_method("plain", {"weight": 2}).exchanges == (Prototypes(weight=2),)
    assert build_method("ready").exchanges == (Prototypes(weight=7.0),)
    assert build_method("plain", {"encoding": "float16"}).exchanges[0] != Prototypes()
    result = simulate(method="two-prototypes:kd=1", learners=2, rounds=1, train=40, test=20, workers=0)
    assert result.summary()["method"] == "two-prototypes"


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a=b", "a b", "a/b", "mine.py"])
def test_name_with_characters_of_settings_or_paths_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a method"):
        register_method(name, Prototypes)


def test_built_in_names_are_protected_and_others_can_be_replaced() -> None:
    with pytest.raises(ConfigurationError, match="there is a built-in method 'fedavg'"):
        register_method("fedavg", Prototypes)
    register_method("own", Prototypes(weight=1.0))
    register_method("own", Prototypes(weight=2.0))
    assert build_method("own").exchanges == (Prototypes(weight=2.0),)
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match="method 'own': it is of type int, and a method is a Method"):
        register_method("own", wrong)
    with pytest.raises(ConfigurationError, match="method 'own': it is the class dict, and a method is a Method"):
        register_method("own", dict)


# --- packages

PACKAGE = """
from consilience import Prototypes

def shared(kd: float = 4.0):
    "From a package."
    return (Prototypes(weight=kd),)
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a method, and another that cannot be imported."""
    site = tmp_path / "site"
    for name, code, points in (
        ("good_methods", PACKAGE, "packaged = good_methods:shared\nfedavg = good_methods:shared\n"),
        ("bad_methods", "import no_such_module\n", "broken = bad_methods:shared\nnumber = good_methods:__name__\n"),
    ):
        about = site / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (site / f"{name}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[consilience.methods]\n{points}")
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("packages")
def test_methods_of_packages_are_found_and_built_in_names_protected() -> None:
    assert [e.weight for e in build_method("packaged", {"kd": 2}).exchanges] == [2]
    assert {"packaged", "broken"} <= set(method_names()) and len(build_method("fedavg").exchanges[0].name) == 7
    with pytest.raises(UnknownName, match=r"Did you mean 'packaged'\?.*a method of your own is named FILE.py:NAME"):
        build_method("pakaged")


@pytest.mark.usefixtures("packages")
def test_broken_package_is_reported_and_does_not_break_others(
    command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError, match=r"method 'broken' of package 'bad_methods' cannot be loaded.*no_such"):
        build_method("broken")
    with pytest.raises(ConfigurationError, match="method 'number' of package 'bad_methods': it is of type str"):
        build_method("number")
    code, out, _ = command("methods", "--data", "digits")
    assert code == 0 and "packaged" in out and "consilience" in out and "broken" not in out
    assert any("method 'broken' of package 'bad_methods'" in record.message for record in caplog.records)


# --- attributes of exchanges instead of annotations


def test_varying_fields_are_declared_by_an_attribute() -> None:
    @dataclass(frozen=True)
    class Own(Exchange):
        name: str = "own"
        weight: Any = 1.0
        temperature: float = 1.0

    from consilience.exchanges.base import fixed_fields, varying_fields

    assert varying_fields(Own()) == ("weight",) and fixed_fields(Own()) == {"name": "own", "temperature": 1.0}

    @dataclass(frozen=True)
    class Wrong(Own):
        varies = ("wieght",)

    with pytest.raises(UnknownName, match=r"'wieght' of `varies` of exchange 'own'. Did you mean 'weight'"):
        varying_fields(Wrong())


@pytest.mark.parametrize("given", [1.5, 2.0, 0, True])
def test_an_exchange_that_is_due_every_so_many_rounds_says_a_whole_number(given: Any) -> None:
    """Also where its own class does not check it."""

    @dataclass(frozen=True)
    class Seldom(Exchange):
        name: str = "seldom"
        every: int = 1

    register_method("seldom", lambda every: Seldom(every=every))
    with pytest.raises(ConfigurationError, match=rf"every of exchange 'seldom' is {given}; it must be a whole number"):
        build_method("seldom", {"every": given})
    with pytest.raises(ConfigurationError, match=rf"every of exchange 'seldom' is {given}; it must be a whole number"):
        Role(exchanges=(Seldom(every=given),))


@pytest.mark.parametrize("given", [{"epochs": 1.5}, {"epochs": -1}, {"batch_size": 2.5}, {"batch_size": 0}])
def test_a_role_trains_for_whole_numbers_of_epochs_and_samples(given: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{next(iter(given))} is .*; it must be a whole number, [01] or more"
    ):
        Role(**given)
    assert Role(epochs=0).epochs == 0
