"""A home's router that speaks NAT-PMP, in a laboratory: run it in a gateway's namespace.

python -m tests.e2e.nat_pmp_gateway OUTER_HOST

It leads ports where it is asked to and takes them away again, by iptables, and says each line.
"""

import ipaddress
import socket
import struct
import subprocess
import sys

PORT = 5351


def iptables(verb, host, port, outer):
    there = f"-p tcp -d {host} --dport {port} -j ACCEPT"
    to = f"-p tcp --dport {outer} -j DNAT --to {host}:{port}"
    for rule in (f"-t nat -{verb} PREROUTING -i wan {to}", f"-{verb} FORWARD -i wan {there}"):
        subprocess.run(["iptables", *rule.split()], check=True)


def main(outer_host):
    held = {}
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("0.0.0.0", PORT))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    while True:
        data, source = sock.recvfrom(64)
        if data == bytes(2):
            address = ipaddress.IPv4Address(outer_host).packed
            sock.sendto(struct.pack("!BBHI4s", 0, 128, 0, 1, address), source)
            continue
        port, outer, lease_s = struct.unpack("!HHI", data[4:])
        key = source[0], port
        if lease_s and key not in held:
            # Another port than was asked for: routers may choose.
            held[key] = outer + 1000
            iptables("I", source[0], port, held[key])
        outer = held.get(key, 0)
        if not lease_s and key in held:
            iptables("D", source[0], port, held.pop(key))
        sock.sendto(struct.pack("!BBHIHHI", 0, 130, 0, 1, port, outer, lease_s), source)
        sys.stdout.write(f"{port} {outer} {lease_s}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
