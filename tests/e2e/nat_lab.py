"""Homes behind routers, out of network namespaces: an internet, hosts on it, gateways that drop
whatever nobody inside has asked for. Linux, root, `ip` and `iptables`.

    with nat_lab() as lab:
        subprocess.Popen(lab.command("homeA", [...]))

`SixLab` is the same of IPv6 alone: homes have public addresses, and routers that let nobody in.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

PUBLIC = {"pub": "198.51.100.10", "pub2": "198.51.100.11"}
HOMES = {"A": 1, "B": 2, "C": 3}


def why_no_lab() -> str:
    """What is missing here to make one; empty where nothing is."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "iptables", "sysctl"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    name = f"bl{os.getpid()}"
    made = _run("ip", "netns", "add", name)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()[:200]}"
    try:
        rule = ("-t", "nat", "-A", "POSTROUTING", "-o", "lo", "-j", "MASQUERADE")
        told = _run("ip", "netns", "exec", name, "iptables", *rule)
        return f"iptables: {told.stderr.strip()[:200]}" if told.returncode else ""
    finally:
        _run("ip", "netns", "del", name)


@dataclass
class NatLab:
    """One laboratory; its namespaces have names of its own."""

    prefix: str = field(default_factory=lambda: f"bl{uuid.uuid4().hex[:6]}")
    is_symmetric: bool = False
    names: list[str] = field(default_factory=list)

    def namespace(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def command(self, host: str, line: Sequence[str]) -> list[str]:
        """A command line that runs on a host of the lab."""
        return ["ip", "netns", "exec", self.namespace(host), *line]

    def run(self, host: str, *line: str) -> str:
        return _checked(*self.command(host, line))

    def up(self) -> None:
        for name in (
            "net",
            *PUBLIC,
            *(f"{kind}{home}" for home in HOMES for kind in ("gw", "home")),
        ):
            _checked("ip", "netns", "add", self.namespace(name))
            self.names.append(name)
            _checked("ip", "-n", self.namespace(name), "link", "set", "lo", "up")
        self._in("net", "link add internet type bridge", "link set internet up")
        for name, address in PUBLIC.items():
            self._attach(name, address)
        for home, number in HOMES.items():
            self._attach(f"gw{home}", f"198.51.100.{20 + number}")
            self._home(home, f"192.168.{number}")

    def down(self) -> None:
        while self.names:
            name = self.namespace(self.names.pop())
            for pid in _run("ip", "netns", "pids", name).stdout.split():
                os.kill(int(pid), 9)
            _run("ip", "netns", "del", name)

    def _in(self, host: str, *commands: str) -> None:
        for words in commands:
            _checked("ip", "-n", self.namespace(host), *words.split())

    def _attach(self, host: str, address: str) -> None:
        there = self.namespace(host)
        self._in("net", f"link add w{host} type veth peer name wan netns {there}")
        self._in("net", f"link set w{host} master internet up")
        self._in(host, f"addr add {address}/24 dev wan", "link set wan up")

    def _home(self, home: str, net: str) -> None:
        gateway, host = f"gw{home}", f"home{home}"
        self._in(gateway, f"link add lan type veth peer name eth0 netns {self.namespace(host)}")
        self._in(gateway, f"addr add {net}.1/24 dev lan", "link set lan up")
        self._in(host, f"addr add {net}.2/24 dev eth0", "link set eth0 up")
        self._in(host, f"route add default via {net}.1")
        self.run(gateway, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        ports = " --random-fully" if self.is_symmetric else ""
        for rule in (
            f"-t nat -A POSTROUTING -o wan -j MASQUERADE{ports}",
            "-A FORWARD -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-A FORWARD -i wan -j DROP",
            "-A INPUT -i wan -m conntrack ! --ctstate ESTABLISHED,RELATED -j DROP",
        ):
            self.run(gateway, "iptables", *rule.split())

    def forward(self, home: str, port: int) -> str:
        """Have a home's router lead a TCP port to the machine behind it; the address outside."""
        there = f"192.168.{HOMES[home]}.2"
        for rule in (
            f"-t nat -A PREROUTING -i wan -p tcp --dport {port} -j DNAT --to {there}",
            f"-I FORWARD -i wan -p tcp -d {there} --dport {port} -j ACCEPT",
        ):
            self.run(f"gw{home}", "iptables", *rule.split())
        return f"/ip4/198.51.100.{20 + HOMES[home]}/tcp/{port}"


PUBLIC_6 = {"pub": "2001:db8::10", "pub2": "2001:db8::11"}


@dataclass
class SixLab(NatLab):
    """Nobody has an IPv4 address. Each home has a network of its own, as providers give them."""

    def _attach(self, host: str, address: str) -> None:
        there, last = self.namespace(host), address.rpartition(".")[2]
        self._in("net", f"link add w{host} type veth peer name wan netns {there}")
        self._in("net", f"link set w{host} master internet up")
        # Without a search for duplicates, which would take the addresses seconds to be usable.
        self._in(host, f"-6 addr add 2001:db8::{last}/64 dev wan nodad", "link set wan up")
        for home, number in HOMES.items():
            if host != f"gw{home}":
                via = f"2001:db8::{20 + number}"
                self._in(host, f"-6 route add 2001:db8:{number}::/64 via {via} dev wan")

    def _home(self, home: str, net: str) -> None:
        gateway, host, number = f"gw{home}", f"home{home}", net.rpartition(".")[2]
        mine = f"2001:db8:{number}:"
        self._in(gateway, f"link add lan type veth peer name eth0 netns {self.namespace(host)}")
        self._in(gateway, f"-6 addr add {mine}:1/64 dev lan nodad", "link set lan up")
        self._in(host, f"-6 addr add {mine}:2/64 dev eth0 nodad", "link set eth0 up")
        self._in(host, f"-6 route add default via {mine}:1 dev eth0")
        self.run(gateway, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        for rule in (
            "-A FORWARD -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-A FORWARD -i wan -j DROP",
        ):
            self.run(gateway, "ip6tables", *rule.split())


@contextmanager
def nat_lab(*, is_symmetric: bool = False, is_six: bool = False) -> Iterator[NatLab]:
    """A laboratory, gone when the block ends; skips the test, saying why, where none can be."""
    why = why_no_lab()
    if why:
        pytest.skip(why)
    lab = SixLab() if is_six else NatLab(is_symmetric=is_symmetric)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


def _run(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _checked(*line: str) -> str:
    done = _run(*line)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
    return done.stdout
