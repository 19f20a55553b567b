"""The batches of a group, as its data asks for."""

from __future__ import annotations

import torch

from hfta_nb.data import Data, Stream, is_resident
from hfta_nb.train.batches import Batches, Hosted, Resident, Streamed
from hfta_nb.train.consecutive import Consecutive


def batches_of(data: Data | Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> Batches:
    """The mini-batches of any data; see `Batches`."""
    if isinstance(data, Stream):
        return (Consecutive if data.held.varies else Streamed)(data, batch_size, device, dtype)
    return (Resident if is_resident(data, device, dtype) else Hosted)(data, batch_size, device, dtype)
