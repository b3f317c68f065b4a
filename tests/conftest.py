"""Tests run on one torch thread: results must not depend on it, and two cores are all there is."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
