"""Who looks at the admin pages."""

from __future__ import annotations

import pytest
from flask import Flask

from tests.support.users import Person, person


@pytest.fixture
def operator(app: Flask) -> Person:
    return person(app, "otto", tenant="operators", role="operator")


@pytest.fixture
def admin(app: Flask) -> Person:
    return person(app, "ada", role="admin")
