"""What the app reports about itself. Every part that reports is handed a `Telemetry`; `NullTelemetry` is its
twin that reports to nobody.
"""

from agentapp.telemetry.alerts import Alert, PendingAlerts
from agentapp.telemetry.protocol import NullTelemetry, Telemetry
from agentapp.telemetry.violations import Violations
from agentapp.telemetry.wait import Wait

__all__ = ["Alert", "NullTelemetry", "PendingAlerts", "Telemetry", "Violations", "Wait"]
