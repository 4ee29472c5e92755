"""Published tables and figures, each by name: `consilience reproduce NAME`."""

from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown, play
from consilience.papers.flesd.figure2 import ROBUSTNESS
from consilience.papers.flesd.figures4_5 import COMMUNICATION as COMMUNICATION_OF_FLESD
from consilience.papers.flesd.figures4_5 import CONVERGENCE
from consilience.papers.flesd.table1 import TABLE1 as TABLE1_OF_FLESD
from consilience.papers.thesis.communication import COMMUNICATION
from consilience.papers.thesis.figure3 import ABLATION
from consilience.papers.thesis.figures4_5 import CURVES, MAPS
from consilience.papers.thesis.grids import ASYNCHRONY, FRONTIER, HETEROGENEITY
from consilience.papers.thesis.table1 import TABLE1_OF_THESIS
from consilience.papers.two_stage.figure4 import UNIVERSALITY
from consilience.papers.two_stage.figures2_3 import CURVES as CURVES_OF_TWO_STAGE
from consilience.papers.two_stage.figures5_6 import LEAKAGE
from consilience.papers.two_stage.table2 import TABLE2 as TABLE2_OF_TWO_STAGE

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
