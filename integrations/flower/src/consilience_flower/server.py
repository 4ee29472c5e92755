"""The ServerApp: a relay of its own, to which it passes what the nodes ask."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from consilience.errors import ConsilienceError
from consilience_flower.gateway import RelayGateway
from consilience_flower.run import FederationRun
from consilience_flower.settings import FederationSettings

log = logging.getLogger("flwr")


def server_app() -> ServerApp:
    """A ServerApp that runs the federation which the run configuration names."""
    app = ServerApp()
    app.main()(run_federation)
    return app


def run_federation(grid: Grid, context: Context) -> None:
    """Run the federation which the run configuration names, from the `main` function of a ServerApp."""
    try:
        settings = FederationSettings.of(context.run_config)
        with RelayGateway(settings.store, settings.charter) as relay:
            FederationRun(grid, relay, settings).run()
    except ConsilienceError as error:
        log.error("%s", error)
        raise
