"""Pure projections of the log: the timeline, progress, the staleness feed, costs, lineage, a diagnosis, and tables.

Owns what is shown about a run, as frozen values. Owns no pixels (plots, widgets). One rule a change must keep: fed in
any pieces, a view shows the same.
"""

from flashevolve_lab.views.columns import COLUMNS, NAMES
from flashevolve_lab.views.costs import Cost, Costs, CostsSnapshot
from flashevolve_lab.views.diagnosis import Diagnosis, DiagnosisSnapshot, Load
from flashevolve_lab.views.dossier import Act, Compared, Dossier, Gate, Relative, Spoken, Text, Trial, Work
from flashevolve_lab.views.evidence import Evidence
from flashevolve_lab.views.facts import RunFacts, worded
from flashevolve_lab.views.lineage import Lineage, LineageDelta, LineageSnapshot, Node
from flashevolve_lab.views.progress import OUTCOMES, Point, Progress, ProgressDelta, ProgressSnapshot, Standing
from flashevolve_lab.views.staleness import ACTIONS, StalenessDelta, StalenessFeed, StalenessSnapshot, StaleRow
from flashevolve_lab.views.steps import StepChange, StepLine, Steps
from flashevolve_lab.views.tables import Tables
from flashevolve_lab.views.timeline import Mark, Span, Timeline, TimelineDelta, TimelineSnapshot

__all__ = [
    "ACTIONS", "COLUMNS", "NAMES", "OUTCOMES", "Act", "Compared", "Cost", "Costs", "CostsSnapshot", "Diagnosis",
    "DiagnosisSnapshot", "Dossier", "Evidence", "Gate", "Lineage", "LineageDelta", "LineageSnapshot", "Load",
    "Mark", "Node", "Point", "Progress", "ProgressDelta", "ProgressSnapshot", "Relative", "RunFacts", "Span",
    "Spoken", "StaleRow", "StalenessDelta", "StalenessFeed", "StalenessSnapshot", "Standing", "StepChange",
    "StepLine", "Steps", "Tables", "Text", "Timeline", "TimelineDelta", "TimelineSnapshot", "Trial", "Work",
    "worded",
]  # fmt: skip
