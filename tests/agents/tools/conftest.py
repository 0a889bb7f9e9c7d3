from __future__ import annotations

import pytest

from tests.agents.tools.stores import Stores


@pytest.fixture
def stores() -> Stores:
    return Stores()
