# SPDX-License-Identifier: Apache-2.0
"""API credentials: tokens and kubeconfigs of users, the service account key, the front proxy."""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tests.certificates import Authority, openssl

FRONT_PROXY = "front-proxy-client"


@dataclass(slots=True)
class Credentials:
    """All in one folder. url: the API. ca: the certificate that the API server writes at its
    start.
    """

    folder: Path
    url: str
    ca: Path
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def account_key(self) -> Path:
        """Signs service account tokens."""
        return self.folder / "service-account.key"

    @property
    def account_public_key(self) -> Path:
        """Verifies service account tokens."""
        return self.folder / "service-account.pub"

    @property
    def token_file(self) -> Path:
        """For kube-apiserver --token-auth-file."""
        return self.folder / "tokens.csv"

    @property
    def front_proxy(self) -> Path:
        """The certificate by which aggregated API servers know kube-apiserver, and its CA."""
        return self.folder / FRONT_PROXY

    def make(self, nodes: list[str]) -> None:
        """Write keys, tokens and kubeconfigs; the certificate need not exist yet."""
        self.folder.mkdir(mode=0o700, parents=True)
        openssl("genrsa", "-out", str(self.account_key), "2048")
        openssl(
            "rsa", "-in", str(self.account_key), "-pubout", "-out", str(self.account_public_key)
        )
        Authority(self.folder / "front-proxy-ca").issue(self.front_proxy, FRONT_PROXY)
        users = {
            "admin": "system:masters",
            "system:kube-controller-manager": "",
            "system:kube-scheduler": "",
            "system:kube-proxy": "",
            **{f"system:node:{node}": "system:nodes" for node in nodes},
        }
        lines = []
        for user, group in users.items():
            self.tokens[user] = secrets.token_hex(16)
            lines.append(f'{self.tokens[user]},{user},{user},"{group}"')
            self.kubeconfig(user).write_text(json.dumps(self._document(user), indent=1))
        self.token_file.write_text("\n".join(lines) + "\n")

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig file for that user."""
        return self.folder / f"{user.rpartition(':')[2]}.kubeconfig"

    def _document(self, user: str) -> dict[str, object]:
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": user}}],
            "current-context": "default",
        }
