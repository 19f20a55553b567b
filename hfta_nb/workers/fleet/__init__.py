"""Groups that don't fuse with each other, on many devices: flotillas, their devices, and what a cluster would take."""

from hfta_nb.workers.fleet.fleet_plan import plan
from hfta_nb.workers.fleet.flotillas import create_flotilla
from hfta_nb.workers.fleet.placement import assign_devices
from hfta_nb.workers.fleet.plan_records import Flotilla, Plan
from hfta_nb.workers.fleet.profile import Measured, Profile
from hfta_nb.workers.fleet.rates import extrapolate
from hfta_nb.workers.fleet.rounds import Change, Rounds
from hfta_nb.workers.fleet.simulation import Simulation, simulate

__all__ = [
    "Change",
    "Flotilla",
    "Measured",
    "Plan",
    "Profile",
    "Rounds",
    "Simulation",
    "assign_devices",
    "create_flotilla",
    "extrapolate",
    "plan",
    "simulate",
]
