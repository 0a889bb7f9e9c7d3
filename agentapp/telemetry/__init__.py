"""What the app reports about itself. Every part that reports is handed a `Telemetry`; `NullTelemetry` is its
twin that reports to nobody.
"""

from agentapp.telemetry.alerts import Alert, PendingAlerts
from agentapp.telemetry.protocol import NullTelemetry, Telemetry
from agentapp.telemetry.violations import Violations

__all__ = ["Alert", "NullTelemetry", "PendingAlerts", "Telemetry", "Violations"]
