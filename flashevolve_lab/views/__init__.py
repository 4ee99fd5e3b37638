"""Pure projections of the log: the timeline, progress, the staleness feed, costs, lineage, a diagnosis, and tables.

Owns what is shown about a run, as frozen values. Owns no pixels (plots, widgets). One rule a change must keep: fed in
any pieces, a view shows the same.
"""

from flashevolve_lab.views.columns import COLUMNS, NAMES
from flashevolve_lab.views.completion import COMPLETIONS, CompletionDelta, CompletionFeed, CompletionRow, CompletionSnapshot
from flashevolve_lab.views.costs import Cost, Costs, CostsSnapshot
from flashevolve_lab.views.diagnosis import Diagnosis, DiagnosisSnapshot, Load, depth_of
from flashevolve_lab.views.dossier import Act, Compared, Dossier, Gate, Relative, Spoken, Text, Trial, Work
from flashevolve_lab.views.evidence import Evidence
from flashevolve_lab.views.facts import RunFacts, worded
from flashevolve_lab.views.lineage import Lineage, LineageDelta, LineageSnapshot, Node
from flashevolve_lab.views.progress import OUTCOMES, Point, Progress, ProgressDelta, ProgressSnapshot, Standing
from flashevolve_lab.views.runtime import BatchedRuntime, Runtime, RuntimeSnapshot, batched_runtime, slowest
from flashevolve_lab.views.servers import ServerRow, Servers
from flashevolve_lab.views.staleness import ACTIONS, StalenessDelta, StalenessFeed, StalenessSnapshot, StaleRow
from flashevolve_lab.views.steps import StepChange, StepLine, Steps
from flashevolve_lab.views.tables import Tables
from flashevolve_lab.views.timeline import VERSIONS, Mark, Span, Timeline, TimelineDelta, TimelineSnapshot

__all__ = [
    "ACTIONS", "COLUMNS", "COMPLETIONS", "CompletionDelta", "CompletionFeed", "CompletionRow", "CompletionSnapshot", "VERSIONS", "NAMES", "OUTCOMES", "Act", "BatchedRuntime", "Compared", "Cost", "Costs", "CostsSnapshot", "Diagnosis",
    "DiagnosisSnapshot", "Dossier", "Evidence", "Gate", "Lineage", "LineageDelta", "LineageSnapshot", "Load",
    "Mark", "Node", "Point", "Progress", "ProgressDelta", "ProgressSnapshot", "Relative", "RunFacts", "Runtime", "RuntimeSnapshot", "ServerRow", "Servers", "Span",
    "Spoken", "StaleRow", "StalenessDelta", "StalenessFeed", "StalenessSnapshot", "Standing", "StepChange",
    "StepLine", "Steps", "Tables", "Text", "Timeline", "TimelineDelta", "TimelineSnapshot", "Trial", "Work",
    "batched_runtime", "depth_of", "slowest", "worded",
]  # fmt: skip
