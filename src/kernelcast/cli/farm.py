"""Commands on the Ray cluster that `--farm ray` measures on: farm up, join, status, drain, down."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from kernelcast import plugins
from kernelcast.backends import _preflight
from kernelcast.cli.common import COUNT, ERR, OUT, Decorator, address_option, json_option, option
from kernelcast.errors import SetupError, import_extra
from kernelcast.events import ComponentSpec
from kernelcast.farm import _credentials, _registry
from kernelcast.report.tables import table

_LONGEST_LABEL = 63
_LAST_LINES = 8
_PRIORITY = {"RAY_worker_niceness": "0"}  # by default anything else on the node disturbs a slot
_more = click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- RAY_OPTION...]")
_address = option(
    "--address",
    "Address of the cluster; auto is the one that this node belongs to.",
    default="auto",
)
_tls = option("--tls", "Encrypt what nodes say to each other, with certificates of our own.", bool)
_slots = option("--slots", "Devices, each of which measures one kernel at a time.", COUNT, 1)
_backend = option("--backend", "Backend that detects the device.", default="cpp")
_lock = option("--lock-clocks", "Lock the GPUs' clocks until `farm down` (needs root).", bool)
_name = option("--name", "Name of the node (default: its address).")


def _device(default: str) -> Decorator:
    text = "Type of this node's devices: auto is what the backend detects; none joins without."
    return option("--device", text, default=default)


@click.group()
def farm() -> None:
    """The Ray cluster that `--farm ray` measures on: start, join, watch and stop it.

    \b
    Example:
      kernelcast farm up --host 10.0.0.1             on the first machine
      kernelcast farm join 10.0.0.1:6379             on each machine with a device
      kernelcast farm status
      kernelcast search softmax --farm ray

    A cluster of two machines, step by step: docs/how-to/farm.md.
    """


@farm.command()
@option("--host", "Address of this node that the others can reach.", default="127.0.0.1")
@option("--port", "Port of the cluster.", click.IntRange(1, 65535), 6379)
@_device("none")
@_slots
@_backend
@_lock
@_name
@_tls
@json_option
@_more
def up(
    host: str,
    port: int,
    device: str,
    slots: int,
    backend: str,
    lock_clocks: bool,
    name: str | None,
    tls: bool,
    as_json: bool,
    more: tuple[str, ...],
) -> None:
    """Start the first node of a cluster, and say how others join it.

    The cluster asks for a token, which is made in ~/.kernelcast/farm (or RAY_AUTH_TOKEN_PATH).

    \b
    Examples:
      kernelcast farm up --device auto
      kernelcast farm up --host 10.0.0.1 --tls
      kernelcast farm up -- --num-cpus=4
    """
    label = _label(device, backend)
    shared = _credentials.make(host, tls=tls, new=True)
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    _start(host, name, label, slots, [*head, *more], lock_clocks=lock_clocks)
    join = ["kernelcast", "farm", "join", f"{host}:{port}", *(["--tls"] if tls else [])]
    copy = _credentials.copying(shared)
    if as_json:
        facts = {
            "address": f"{host}:{port}",
            "device": label or "none",
            "slots": slots * bool(label),
        }
        click.echo(json.dumps({**facts, "copy": copy, "join": shlex.join(join)}))
        return
    OUT.print(f"The cluster runs at {host}:{port}.")
    if host.startswith("127."):
        OUT.print("Other machines cannot reach this address; --host names one that they can.")
    else:
        for line in (
            "For each further NODE, here:",
            f"  {copy}",
            "there:",
            f"  {shlex.join(join)}",
        ):
            OUT.print(line, soft_wrap=True)
    OUT.print("To search, here or there: kernelcast search softmax --farm ray")


@farm.command()
@click.argument("address")
@_device("auto")
@_slots
@_backend
@_lock
@option("--host", "Address of this node (default: the one that reaches ADDRESS).")
@_name
@_tls
@json_option
@_more
def join(
    address: str,
    device: str,
    slots: int,
    backend: str,
    lock_clocks: bool,
    host: str | None,
    name: str | None,
    tls: bool,
    as_json: bool,
    more: tuple[str, ...],
) -> None:
    """Add this machine and its devices to the cluster at ADDRESS (host:port).

    \b
    Examples:
      kernelcast farm join 10.0.0.1:6379
      kernelcast farm join 10.0.0.1:6379 --backend cuda --slots 8
      kernelcast farm join 10.0.0.1:6379 --device none      to search from here only
    """
    label = _label(device, backend)
    host = host or _own_address(address)
    _credentials.make(host, tls=tls, new=False)
    role = [f"--address={address}", *more]
    _start(host, name, label, slots, role, lock_clocks=lock_clocks)
    if as_json:
        facts = {"address": address, "node": name or host, "device": label or "none"}
        click.echo(json.dumps({**facts, "slots": slots * bool(label)}))
    else:
        devices = f"{slots} x {label}" if label else "no devices"
        OUT.print(f"Node {name or host} has joined {address} with {devices}.", soft_wrap=True)


def _label(device: str, backend: str) -> str:
    """Return the type of this node's devices as a label of Ray; empty if it has none."""
    if device == "none":
        return ""
    if device == "auto":
        ERR.print(f"detecting the device by the backend {backend}")
        part = plugins.build("backend", ComponentSpec(name=backend))
        device = part.device.id
        part.close()
    return re.sub(r"[^A-Za-z0-9]+", "-", device)[:_LONGEST_LABEL].strip("-")


def _own_address(address: str) -> str:
    """Return the address of this machine from which the other one can be reached."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10.0) as connection:
            return str(connection.getsockname()[0])
    except (OSError, ValueError) as error:
        raise SetupError(
            f"{address} does not answer ({error}): start the cluster there by `kernelcast farm up "
            "--host ADDRESS`, and let this machine through its firewall"
        ) from error


def _start(
    host: str,
    name: str | None,
    label: str,
    slots: int,
    role: Sequence[str],
    *,
    lock_clocks: bool,
) -> None:
    """Start Ray on this node."""
    import_extra("ray", "ray")
    if lock_clocks:
        clock = _preflight.lock_clocks()
        os.environ[_preflight.LOCKED_MHZ] = str(clock)
        ERR.print(f"locked the clocks of the GPUs at {clock} MHz")
    declared = [f"--node-ip-address={host}", f"--node-name={name or host}"]
    if label:
        declared.append(f"--resources={json.dumps({_registry.UNIT: slots})}")
        declared.append(f"--labels={_registry.DEVICE}={label}")
    ERR.print(f"starting Ray on {host}, which takes some 10 s")
    _ray("start", *declared, "--disable-usage-stats", *role)


def _ray(*arguments: str) -> None:
    program = [sys.executable, "-m", "ray.scripts.scripts"]
    ended = subprocess.run(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_PRIORITY | _credentials.environment(),
    )
    if "InvalidAuthToken" in ended.stdout:
        raise SetupError(_registry.REFUSED)
    if ended.returncode:
        lines = [line for line in ended.stdout.splitlines() if line.strip()]
        raise SetupError("\n".join([f"ray {arguments[0]} failed:", *lines[-_LAST_LINES:]]))


# ------------------------------------------------------------------------------ a running cluster


def _connect(address: str) -> tuple[Any, Any]:
    """Return the module of Ray and the registry of the cluster."""
    _credentials.load()
    ray = import_extra("ray", "ray")
    ERR.print(f"asking the cluster ({address})")
    return ray, _registry.connect(ray, address)


def _facts(ray: Any, registry: Any) -> dict[str, Any]:
    """Return nodes, slots and searches as plain data."""
    slots, overview = ray.get([registry.status.remote(), registry.overview.remote()])
    nodes = [
        {
            "node": node["NodeName"],
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "device": node["Labels"].get(_registry.DEVICE, "none"),
            "slots": int(node["Resources"].get(_registry.UNIT, 0)),
            "state": "drained" if node["NodeID"] in overview["drained"] else "ready",
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
    return {"nodes": nodes, "slots": slots, "searches": overview["searches"]}


@farm.command()
@_address
@address_option("--serve", "Serve the cluster's metrics to Prometheus here, until Ctrl-C.")
@json_option
def status(address: str, serve: tuple[str, int] | None, as_json: bool) -> None:
    """Show nodes, slots, and which search uses each.

    \b
    Examples:
      kernelcast farm status
      kernelcast farm status --json
      kernelcast farm status --serve 127.0.0.1:9465
    """
    ray, registry = _connect(address)
    if serve is not None:
        from kernelcast.metrics import cluster_families, serving

        with serving(lambda: cluster_families(_facts(ray, registry)), *serve) as url:
            ERR.print(f"serving {url}", soft_wrap=True)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        return
    facts = _facts(ray, registry)
    if as_json:
        click.echo(json.dumps(facts))
        return
    columns = ("node", "address", "device", "slots", "state")
    rows = [[str(row[column]) for column in columns] for row in facts["nodes"]]
    OUT.print(table(None, columns, rows, left=(0, 1, 2, 4), yields=2))
    runs = {row["session"]: row["run"] or "unnamed" for row in facts["searches"]}
    rows = [
        [
            row["node"],
            row["slot"].rpartition(".")[2],
            f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
            runs.get(row["session"], ""),
        ]
        for row in facts["slots"]
    ]
    if rows:
        OUT.print()
        OUT.print(table(None, ("node", "slot", "state", "search"), rows, left=range(4), yields=3))
    columns = ("run", "device", "wanted", "share", "held")
    rows = [[str(row[column]) for column in columns] for row in facts["searches"]]
    if rows:
        OUT.print()
        OUT.print(table(None, columns, rows, left=(0, 1), yields=0))


@farm.command()
@click.argument("node")
@_address
@json_option
def drain(node: str, address: str, as_json: bool) -> None:
    """Give NODE no more work; what it measures now is finished.

    \b
    Example:
      kernelcast farm drain 10.0.0.2

    `kernelcast farm down` on that node stops it then. A node that joins again is used again.
    """
    ray, registry = _connect(address)
    names = {row[key] for row in _facts(ray, registry)["nodes"] for key in ("node", "id")}
    if node not in names:
        raise SetupError(f"the cluster has no node {node!r}: see `kernelcast farm status`")
    ray.get(registry.drain.remote(node))
    if as_json:
        click.echo(json.dumps({"drained": node}))
    else:
        OUT.print(f"Node {node} is given no more work. It may still finish some.", soft_wrap=True)


@farm.command()
def down() -> None:
    """Stop Ray on this machine: all nodes of this user that run on it.

    \b
    Example:
      kernelcast farm down

    On the first node of a cluster, this ends the cluster. Runs can be resumed on another one.
    """
    import_extra("ray", "ray")
    ERR.print("stopping Ray, which takes some seconds")
    _ray("stop")
    _preflight.unlock_clocks()
    _credentials.forget()
    OUT.print("Ray has stopped on this machine.")
