"""Create the charter of a federation without torch: of methods whose uploads are means by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import ConfigurationError
from consilience.peer.array_exchanges import METHODS, array_exchanges
from consilience.peer.charter_means import MeanRules
from consilience.validation import check_integer, check_number
from consilience.wire.charter import Charter, build_charter
from consilience.wire.privacy import PrivacySettings
from consilience.wire.rules import Rules


def create_array_charter(
    name: str,
    method: Mapping[str, Any],
    classes: int,
    width: int = 0,
    *,
    bound: float = 1.0,
    seed: int = 0,
    rules: Rules | None = None,
    privacy: PrivacySettings | None = None,
) -> Charter:
    """The charter of a federation whose members may use any library; `to_toml` is what a relay creates it from.

    name: of the federation. method: the method's name and settings. classes: how many there are. width: how many
    features a sample has, where features are shared. bound: the largest absolute value of a feature's mean; a relay
    refuses larger ones. seed: of random draws. privacy: how uploads are made private; without torch, private="upload".
    """
    if method.get("name") not in METHODS:
        raise ConfigurationError(
            f"method is {method.get('name')!r}; federations of members without torch have {', '.join(METHODS)}"
        )
    check_integer("classes", classes, low=2)
    check_number("bound", bound, low=1e-12)
    if any(channel != "logits" for channel in METHODS[str(method["name"])]):
        check_integer("width", width)
    exchanges = array_exchanges(method, classes, width, bound)
    channels = {e.name: MeanRules().apply(e.channel, ()) for e in exchanges}
    charter = build_charter(name, method, classes, channels, {}, seed, rules)
    return charter.model_copy(update={"privacy": privacy})
