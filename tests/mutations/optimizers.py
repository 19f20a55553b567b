"""Faults in optimizers and lr schedulers."""

from __future__ import annotations

from tests.mutations.fault import Fault

OPTIM = "hfta_nb/optim"

FAULTS = (
    Fault(
        "rmsprop-eps",
        f"{OPTIM}/adagrad.py",
        'below = variance.sqrt().add_(c["eps"])',
        'below = variance.add(c["eps"]).sqrt_()',
        "eps of RMSprop is inside the root",
        ("tests/contract/test_optimizers.py",),
    ),
    Fault(
        "adagrad-step",
        f"{OPTIM}/adagrad.py",
        '(1 + (steps - 1) * values["lr_decay"])',
        '(1 + steps * values["lr_decay"])',
        "Adagrad's decay of lr is a step ahead",
        ("tests/contract/test_optimizers.py",),
    ),
    Fault(
        "nadam-step",
        f"{OPTIM}/adam_kin.py",
        "after = beta1 * (1.0 - 0.5 * power(base, (steps + 1) * decay))",
        "after = beta1 * (1.0 - 0.5 * power(base, steps * decay))",
        "NAdam's next momentum is that of this step",
        ("tests/contract/test_optimizers.py",),
    ),
    Fault(
        "sgd-first-step",
        f"{OPTIM}/sgd.py",
        'scalars["begun"] = np.where(found["moving"], 1, scalars["begun"]).astype(np.float32)',
        'scalars["begun"] = np.ones_like(scalars["begun"])',
        "where momentum is switched on later, its first gradient is dampened",
        ("tests/contract/test_optim_edges.py",),
    ),
    Fault(
        "member-own-entries",
        f"{OPTIM}/own_entries.py",
        "return name in self.masks and not bool(self.masks[name].all())",
        "return False",
        "Adafactor's and Muon's statistics are over a member's padding, too",
        ("tests/contract/test_optim_padded.py",),
    ),
    Fault(
        "segments-steps",
        f"{OPTIM}/segments.py",
        "np.array_equal(self.steps, other.steps)\n            and self.state.keys()",
        "self.state.keys()",
        "parameters with step counts of their own get those of a neighbour when they are laid out anew",
        ("tests/contract/test_optim_surgery.py",),
    ),
    Fault(
        "lr-copy-factory",
        f"{OPTIM}/lr_base.py",
        "self._factories[index], self._before[index] = other._factories[src], copy.deepcopy(other._before[src])",
        "self._before[index] = copy.deepcopy(other._before[src])",
        "the lr schedule of a copied member begins anew as the one that it had before",
        ("tests/contract/test_lr_schedulers.py",),
    ),
    Fault(
        "plateau-metric",
        f"{OPTIM}/lr_base.py",
        "return [(v,) if wants else () for v, wants in zip(values, wanting, strict=True)]",
        "return [(values[0],) if wants else () for wants in wanting]",
        "the first member's metric decides on every member's lr",
        ("tests/contract/test_lr_schedulers.py",),
    ),
)
