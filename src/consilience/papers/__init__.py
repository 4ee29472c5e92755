"""Published tables and figures, each by name: `consilience reproduce NAME`."""

from consilience.papers.cell_runs import run_cells
from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.flesd import experiment as flesd
from consilience.papers.flesd.architectures import ARCHITECTURES as FLESD_ARCHITECTURES
from consilience.papers.flesd.figure2 import FIGURE2 as FLESD_FIGURE2
from consilience.papers.flesd.figure4 import FIGURE4 as FLESD_FIGURE4
from consilience.papers.flesd.figure5 import FIGURE5 as FLESD_FIGURE5
from consilience.papers.flesd.table1 import TABLE1 as FLESD_TABLE1
from consilience.papers.partners import PARTNERS
from consilience.papers.privacy import PRIVACY
from consilience.papers.robustness import ROBUSTNESS
from consilience.papers.thesis.asynchrony import ASYNCHRONY
from consilience.papers.thesis.classes import CLASSES
from consilience.papers.thesis.cluster_sharing import CLUSTER_SHARING
from consilience.papers.thesis.communication import COMMUNICATION
from consilience.papers.thesis.figure3 import FIGURE3
from consilience.papers.thesis.figure4 import FIGURE4
from consilience.papers.thesis.figure5 import FIGURE5
from consilience.papers.thesis.frontier import FRONTIER
from consilience.papers.thesis.growth import GROWTH
from consilience.papers.thesis.heterogeneity import HETEROGENEITY
from consilience.papers.thesis.observations import OBSERVATIONS
from consilience.papers.thesis.peer_to_peer import PEER_TO_PEER
from consilience.papers.thesis.split_learning import SPLIT_LEARNING
from consilience.papers.thesis.table1 import TABLE1
from consilience.papers.two_stage import experiment as two_stage
from consilience.papers.two_stage.figure4 import FIGURE4 as TWO_STAGE_FIGURE4
from consilience.papers.two_stage.figures2_3 import FIGURES2_3 as TWO_STAGE_FIGURES2_3
from consilience.papers.two_stage.figures5_6 import FIGURES5_6 as TWO_STAGE_FIGURES5_6
from consilience.papers.two_stage.table1 import TABLE1 as TWO_STAGE_TABLE1
from consilience.papers.two_stage.table2 import TABLE2 as TWO_STAGE_TABLE2

_THESIS = (
    *(TABLE1, FIGURE3, FIGURE4, FIGURE5, COMMUNICATION, HETEROGENEITY),
    *(ASYNCHRONY, GROWTH, FRONTIER, OBSERVATIONS, CLASSES, SPLIT_LEARNING, CLUSTER_SHARING),
    PEER_TO_PEER,
)
_FLESD = (FLESD_TABLE1, FLESD_FIGURE2, FLESD_FIGURE4, FLESD_FIGURE5, FLESD_ARCHITECTURES)
_TWO_STAGE = (TWO_STAGE_TABLE1, TWO_STAGE_TABLE2, TWO_STAGE_FIGURES2_3, TWO_STAGE_FIGURE4, TWO_STAGE_FIGURES5_6)

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for reproduction in (
        *_THESIS,
        ROBUSTNESS,
        PARTNERS,
        PRIVACY,
        *(each for experiment in _FLESD for each in flesd.SIZES.reproductions(experiment)),
        *(each for experiment in _TWO_STAGE for each in two_stage.SIZES.reproductions(experiment)),
    )
}
"""Every reproduction by name."""

__all__ = ["REPRODUCTIONS", "Cell", "Outcome", "Reproduction", "ResultSection", "Scale", "run_cells"]
