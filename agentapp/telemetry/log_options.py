"""How the log is written, and how much of it. Read before all other settings: reading those may log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from agentapp.parsing import one_of, required_setting, setting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    format: str = required_setting(
        "AGENTAPP_LOG_FORMAT",
        "",
        one_of("console", "json"),
        "lines for people or for machines",
        default_in_words="`console` in a terminal, else `json`",
    )
    level: str = setting(
        "AGENTAPP_LOG_LEVEL",
        "info",
        one_of("debug", "info", "warning", "error"),
        "how grave a line must be to be written; at `warning` there are none about requests that went well",
    )

    @property
    def level_of_libraries(self) -> str:
        """What they have to say of everyday things is not for this log."""
        return "error" if self.level == "error" else "warning"


def load(environ: Mapping[str, str] | None = None) -> LogOptions:
    """A bad value is a `SettingError`."""
    variables = os.environ if environ is None else environ
    declared = settings_of(LogOptions)
    usual = "console" if sys.stderr is not None and sys.stderr.isatty() else "json"
    return LogOptions(
        format=declared["format"].read(variables, default=usual), level=declared["level"].read(variables)
    )
