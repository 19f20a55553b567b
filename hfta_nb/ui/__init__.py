"""Widgets for JupyterLab: the Workbench and its live view."""

from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.workbench import Workbench

__all__ = ["LiveView", "Workbench"]
