# SPDX-License-Identifier: Apache-2.0
"""The reasons of Events; docs/reference/words.md says when each is created."""

from enum import StrEnum


class EventReason(StrEnum):
    """kube-proxy's names where kube-proxy has the Event."""

    STARTING = "Starting"
    HEALTH_PORT = "FailedToStartProxierHealthcheck"
    HEALTH_CHECK_NODE_PORT = "FailedToStartServiceHealthcheck"
    INVALID_ANNOTATION = "InvalidAnnotation"
    ADDRESS_REFUSED = "AddressRefused"
    FRONTEND_CONFLICT = "FrontendConflict"
    NO_LOOKUP_TABLE = "NoLookupTable"
    DOES_NOT_FIT = "DoesNotFit"
    ENDPOINT_EJECTED = "EndpointEjected"
    ON_BACKUP = "OnBackup"
    UNREADABLE = "Unreadable"
