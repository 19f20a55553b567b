"""One training step, and what belongs to it: of an array, or of the plain module that it must equal."""

from hfta_nb.train.step.array_step import ArrayStep
from hfta_nb.train.step.choices import by_step
from hfta_nb.train.step.ema import averages
from hfta_nb.train.step.metric_calls import measured_whole
from hfta_nb.train.step.plain import PlainStep
from hfta_nb.train.step.precision import Precision
from hfta_nb.train.step.recompose import Origin, put_member, recomposed
from hfta_nb.train.step.states import unpacked_states
from hfta_nb.train.step.step_protocol import OUTPUT, Objective, Scores, ScoreSink, Step, call_all, in_phase

__all__ = [
    "OUTPUT",
    "ArrayStep",
    "Objective",
    "Origin",
    "PlainStep",
    "Precision",
    "ScoreSink",
    "Scores",
    "Step",
    "averages",
    "by_step",
    "call_all",
    "in_phase",
    "measured_whole",
    "put_member",
    "recomposed",
    "unpacked_states",
]
