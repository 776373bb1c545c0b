from .app import create_app as create_app
from .client import CopilotClient as CopilotClient
from .settings import ServiceLimits as ServiceLimits
from .settings import ServiceSettings as ServiceSettings
