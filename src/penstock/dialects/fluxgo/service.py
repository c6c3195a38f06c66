"""What all FluxGo connections of a listener share: the engine and the settings."""

from __future__ import annotations

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.partition_making import make_partition
from penstock.model.errors import BrokerError
from penstock.model.listeners import ListenerSettings
from penstock.model.pending import Pending


class FluxGoService:
    def __init__(self, engine: EmbeddedEngine, settings: ListenerSettings) -> None:
        self.engine = engine
        self.settings = settings

    def make_partition(self, topic: str, partition: int) -> BrokerError | Pending[BrokerError | None]:
        """Make a partition that is not there; why it cannot be, or None when it is made."""
        return make_partition(self.engine, self.settings, topic, partition)
