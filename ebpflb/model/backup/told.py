# SPDX-License-Identifier: Apache-2.0
"""What users are told of a Service's backup."""

from ebpflb.model.backup.backups import Backups
from ebpflb.model.backup.lending import LentPort, backup_name
from ebpflb.model.service import Service, ServicePort
from ebpflb.model.traffic_policy import has_usable
from ebpflb.words.backup import BackupUse


def why_used(service: Service, use: BackupUse) -> str:
    """A sentence for a port whose new connections go to its backup; "" for others."""
    name = backup_name(service)
    if use is BackupUse.ONLY:
        return f"no endpoint of its own is usable: new connections go to its backup {name}"
    if use is BackupUse.SPILL:
        at = service.annotated.spill_at
        return f"{at} or more connections are open: new ones also go to its backup {name}"
    return ""


def backup_told(backups: Backups, service: Service, port: ServicePort) -> str:
    """What a Service port has of its backup, and why; empty if it has none."""
    name = backup_name(service)
    if name is None:
        return ""
    lines = backups.problems({}).get(service.name, ())
    lent = backups.lent(service).of(port)
    if lent is None:
        return "; ".join(lines)
    return why_used(service, lent.use) or _standing_by(service, lent)


def _standing_by(service: Service, lent: LentPort) -> str:
    name, at = backup_name(service), service.annotated.spill_at
    if not has_usable(lent.endpoints):
        return f"{name}, which has no usable endpoint either"
    or_many = f", or there are {at} open connections on this node" if at is not None else ""
    return f"{name}, once no endpoint of its own is usable{or_many}"
