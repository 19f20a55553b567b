"""Faults by which a member depends on its neighbours or loses its own state."""

from __future__ import annotations

from tests.mutations.fault import Fault

FAULTS = (
    Fault(
        "clipping-norm",
        "hfta_nb/optim/clipping.py",
        "_multiply(array, found, (limit / (total + 1e-6)).clamp(max=1.0))",
        "_multiply(array, found, (limit / (total.max() + 1e-6)).clamp(max=1.0))",
        "gradients are clipped by the largest norm of all members",
        ("tests/contract/test_clipping.py",),
    ),
    Fault(
        "scaler-overflow",
        "hfta_nb/optim/grad_scaler.py",
        "self._found[id(optimizer)] = found & self._on",
        "self._found[id(optimizer)] = found.any() & self._on",
        "a member that overflows makes all members skip their step",
        ("tests/contract/test_scaler.py",),
    ),
    Fault(
        "skipped-step",
        "hfta_nb/optim/flat.py",
        "            steps[left] = kept[2]\n",
        "",
        "a step that a member skips is counted",
        ("tests/contract/test_optim_edges.py", "tests/contract/test_scaler.py"),
    ),
    Fault(
        "selected-streams",
        "hfta_nb/engine/members/generators.py",
        "return MemberGenerators([states[i] for i in indices], self.device)",
        "return MemberGenerators([states[i] for i in range(len(indices))], self.device)",
        "members taken out of an array draw the dropout of others",
        ("tests/contract/test_surgery.py", "tests/contract/test_streams.py"),
    ),
    Fault(
        "stream-after-building",
        "hfta_nb/train/schedule.py",
        'states.append(seeded_state(variant.seed, s.device) | {"cpu": drawn.get_state()})',
        "states.append(seeded_state(variant.seed, s.device))",
        "a member's dropout begins with the numbers that its weights were drawn from",
        ("tests/core/test_study.py",),
    ),
    Fault(
        "batch-norm-variance",
        "hfta_nb/engine/rules/norm.py",
        "for statistics, changed in zip(rest[:2], flat[:2], strict=True):",
        "for statistics, changed in zip(rest[:1], flat[:1], strict=True):",
        "running variances stay what they were at first",
        ("tests/contract/test_modules.py",),
    ),
    Fault(
        "copied-stream",
        "hfta_nb/engine/array/surgery.py",
        "    state.generators.keep(dst, state.generators.states[src])\n",
        "",
        "a copied member draws dropout of its own",
        ("tests/contract/test_surgery.py",),
    ),
    Fault(
        "lost-member",
        "hfta_nb/train/group_progress.py",
        "finite = torch.isfinite(block).all(0).tolist()",
        "finite = [bool(torch.isfinite(block).all())] * len(self.members.ids)",
        "a member that diverges ends all members of its array",
        ("tests/core/test_study_members.py",),
    ),
)
