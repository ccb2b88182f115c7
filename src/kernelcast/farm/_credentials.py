"""The secrets of a Ray cluster: its token and, with TLS, its certificates.

They lie in `~/.kernelcast/farm`. A node that joins needs a copy of `token` and, with TLS, of
`ca.crt` and `ca.key`; it makes a certificate of its own. Ray reads where they are from variables,
when it is imported. `ray.json` holds these variables for the commands that come later.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernelcast.errors import SetupError

_DAYS = "3650"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")


def folder() -> Path:
    """Return the folder of this user's secrets."""
    return Path.home() / ".kernelcast" / "farm"


def make(host: str, *, tls: bool, new: bool) -> list[Path]:
    """Make the secrets that the node at this address lacks; return those that each node needs.

    Args:
        host: Address of the node.
        tls: Whether the cluster uses TLS.
        new: Whether this node begins the cluster: then the token and the authority are made, too.

    Raises:
        SetupError: A secret of the cluster is missing, or there is no program `openssl`.
    """
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", folder() / "token"))
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    shared = [] if os.environ.get("RAY_AUTH_TOKEN") else [token]
    authority, key = folder() / "ca.crt", folder() / "ca.key"
    if tls:
        shared += [authority, key]
    if new and not token.exists():
        _write(token, secrets.token_hex(32))
    if new and tls and not authority.exists():
        of_authority = ("-x509", "-days", _DAYS, "-subj", "/CN=kernelcast", "-out", authority)
        _openssl("req", *_NEW_KEY, key, *of_authority)
    if missing := [path for path in shared if not path.exists()]:
        raise SetupError(
            f"this node lacks the cluster's {missing[0].name}: on the first node, run "
            f"{copying(shared)}"
        )
    if tls:
        certificate, own, request = (folder() / f"{host}.{end}" for end in ("crt", "key", "csr"))
        names = f"subjectAltName=IP:{host},IP:127.0.0.1,DNS:localhost"
        _openssl("req", *_NEW_KEY, own, "-subj", f"/CN={host}", "-addext", names, "-out", request)
        signing = ("-CA", authority, "-CAkey", key, "-CAcreateserial", "-days", _DAYS)
        named = ("-copy_extensions", "copy", "-in", request, "-out", certificate)
        _openssl("x509", "-req", *signing, *named)
        variables |= {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(certificate),
            "RAY_TLS_SERVER_KEY": str(own),
            "RAY_TLS_CA_CERT": str(authority),
        }
    _write(folder() / "ray.json", json.dumps(variables))
    return shared


def copying(shared: Sequence[Path]) -> str:
    """Return the command that copies secrets of this node to another NODE."""
    target = ".kernelcast/farm"
    files = " ".join(f"~/{target}/{path.name}" for path in shared)
    return f"ssh NODE mkdir -m 700 -p {target} && scp {files} NODE:{target}/"


def load() -> None:
    """Set the variables by which Ray finds the secrets, before it is imported.

    Those that the user has set stay as they are.
    """
    path = folder() / "ray.json"
    if path.exists():
        for name, value in json.loads(path.read_text()).items():
            os.environ.setdefault(name, value)


def forget() -> None:
    """Let later commands not use the secrets of a cluster that this node has left."""
    (folder() / "ray.json").unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """Return the environment of a node, which holds no secret but Ray's."""
    load()
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("RAY_") or not _SECRET.search(name)
    }


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, umask=0o077)
    except FileNotFoundError as error:
        raise SetupError("TLS needs the program openssl: apt-get install openssl") from error
    except subprocess.CalledProcessError as error:
        raise SetupError(f"openssl cannot make a certificate: {error.stderr.strip()}") from error


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)
