"""Pass two: finds the objects that outlive a request, the writes to them that a request can reach, and
whether these writes are safe.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentapp.audit.facts import Module
from agentapp.audit.judge.accesses import Accesses
from agentapp.audit.judge.caches import Caches
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.constructions import Constructions
from agentapp.audit.judge.flags import Flags
from agentapp.audit.judge.hazards import Hazard, group
from agentapp.audit.judge.hooks import Hooks
from agentapp.audit.judge.instances import Instances
from agentapp.audit.judge.locks import Locks
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.params import Params
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.reads import Reads
from agentapp.audit.judge.receivers import Receivers
from agentapp.audit.judge.serving import Serving
from agentapp.audit.judge.sharing import Sharing
from agentapp.audit.judge.verdicts import Verdicts
from agentapp.audit.judge.writes import Writes

__all__ = ["Hazard", "hazards_in"]


def hazards_in(modules: Iterable[Module]) -> list[Hazard]:
    """Judge all modules of a program together."""
    program = Program(modules)
    calls, makers = Calls(program), Makers(program)
    reach = Reach(program, calls)
    locks = Locks(program, calls, reach)
    sharing, serving = Sharing(program, reach, makers), Serving(program, calls)
    instances = Instances(program, reach, makers, sharing, serving, Receivers(program, calls, reach))
    constructions = Constructions(program)
    writes = Writes(program, calls, reach, makers, instances, constructions)
    flags, params = Flags(program, calls, constructions), Params(program, calls)
    accesses = Accesses(program, reach, locks, makers, writes, params, flags)
    verdicts = Verdicts(program, locks, Reads(program, reach))
    found = [*Caches(program, reach, makers).hazards(), *Hooks(program, calls, makers).hazards()]
    for shared in accesses.gather():
        found += verdicts.judge(shared)
    return group(set(found))
