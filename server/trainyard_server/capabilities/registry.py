"""Registry: which capabilities does a server have? A line each."""

from collections.abc import Sequence

from trainyard_server.capabilities.attachments.capability import ATTACHMENTS
from trainyard_server.capabilities.backups.capability import BACKUPS
from trainyard_server.capabilities.config_editor.capability import CONFIG_EDITOR
from trainyard_server.capabilities.dependencies.capability import DEPENDENCIES
from trainyard_server.capabilities.experiments.capability import EXPERIMENTS
from trainyard_server.capabilities.google.capability import GOOGLE
from trainyard_server.capabilities.health.capability import HEALTH
from trainyard_server.capabilities.monitoring.capability import MONITORING
from trainyard_server.capabilities.notifications.capability import NOTIFICATIONS
from trainyard_server.capabilities.origins.capability import ORIGINS
from trainyard_server.capabilities.preemption.capability import PREEMPTION
from trainyard_server.capabilities.retention.capability import RETENTION
from trainyard_server.capabilities.secrets.capability import SECRETS
from trainyard_server.capabilities.sharing.capability import SHARING
from trainyard_server.capabilities.single_sign_on.capability import SINGLE_SIGN_ON
from trainyard_server.capabilities.tracking.capability import TRACKING
from trainyard_server.capabilities.why.capability import WHY
from trainyard_server.capability import Capability

CAPABILITIES: Sequence[Capability] = (
    GOOGLE,
    TRACKING,
    EXPERIMENTS,
    DEPENDENCIES,
    ATTACHMENTS,
    SECRETS,
    NOTIFICATIONS,
    MONITORING,
    SHARING,
    PREEMPTION,
    BACKUPS,
    ORIGINS,
    WHY,
    HEALTH,
    CONFIG_EDITOR,
    SINGLE_SIGN_ON,
    RETENTION,
)
