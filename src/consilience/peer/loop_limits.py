"""What a training loop of one's own cannot take part in: refused, with the command that can."""

from __future__ import annotations

from collections.abc import Iterable

from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange
from consilience.exchanges.owning import OwningExchange
from consilience.wire.charter import Charter


def refuse_moves_before_batches(exchanges: Iterable[Exchange], charter: Charter) -> None:
    """Refuse an exchange that moves its part before every batch, which only a trainer of ours can do."""
    for e in exchanges:
        if isinstance(e, OwningExchange) and e.moves_before_batches:
            raise ConfigurationError(
                f"federation {charter.name!r} moves {e.owned_part!r} before every batch (inner=batch), which a loop of "
                f"your own cannot do; take part with `consilience join`"
            )


def refuse_roles(charter: Charter) -> None:
    """Refuse a method whose roles act one after the other: a loop of one's own has no place for each of them."""
    if charter.roles is not None:
        raise ConfigurationError(
            f"members of federation {charter.name!r} have the roles {', '.join(charter.roles.order)}, which act one "
            f"after the other in a round; take part with the command `consilience join`, which trains for you"
        )
