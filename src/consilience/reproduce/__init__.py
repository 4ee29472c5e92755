"""Published tables and figures, each by name: `consilience reproduce NAME`."""

from consilience.reproduce.ablation import ABLATION
from consilience.reproduce.cells import Cell, Outcome, Reproduction, Scale, Shown, play
from consilience.reproduce.communication import COMMUNICATION
from consilience.reproduce.curves import CURVES, MAPS
from consilience.reproduce.flesd_local import ROBUSTNESS
from consilience.reproduce.flesd_rounds import COMMUNICATION as COMMUNICATION_OF_FLESD
from consilience.reproduce.flesd_rounds import CONVERGENCE
from consilience.reproduce.flesd_table1 import TABLE1 as TABLE1_OF_FLESD
from consilience.reproduce.grids import ASYNCHRONY, FRONTIER, HETEROGENEITY
from consilience.reproduce.table1 import TABLE1_OF_THESIS
from consilience.reproduce.two_stage_curves import CURVES as CURVES_OF_TWO_STAGE
from consilience.reproduce.two_stage_leakage import LEAKAGE
from consilience.reproduce.two_stage_table2 import TABLE2 as TABLE2_OF_TWO_STAGE
from consilience.reproduce.two_stage_universality import UNIVERSALITY

REPRODUCTIONS: dict[str, Reproduction] = {
    each.name: each
    for each in (
        TABLE1_OF_THESIS,
        ABLATION,
        CURVES,
        MAPS,
        COMMUNICATION,
        HETEROGENEITY,
        ASYNCHRONY,
        FRONTIER,
        *TABLE1_OF_FLESD,
        *ROBUSTNESS,
        *COMMUNICATION_OF_FLESD,
        *CONVERGENCE,
        *TABLE2_OF_TWO_STAGE,
        *CURVES_OF_TWO_STAGE,
        *UNIVERSALITY,
        *LEAKAGE,
    )
}
"""Every reproduction by name."""

__all__ = ["REPRODUCTIONS", "Cell", "Outcome", "Reproduction", "Scale", "Shown", "play"]
