"""Interfaces, names, routes and InfiniBand ports, in the kernel's own words."""

import os
import socket
import time

from noderun.sysfs import first_line, names_in
from noderun.vendor_tools import MOST_LINES


def interface_facts(name):
    """Return state, MTU, speed and kind (ARPHRD_…: 1 Ethernet, 32 InfiniBand) of a network
    interface; None if it is missing.

    Speed is in Mb/s, None if the kernel does not know it.
    """
    base = os.path.join("/sys/class/net", os.path.basename(name))
    try:
        mtu = int(first_line(base, "mtu"))
    except ValueError:
        return None
    speed = first_line(base, "speed")
    return {
        "state": first_line(base, "operstate"),
        "mtu": mtu,
        "speed_mbit": int(speed)
        if speed.isdigit() and int(speed)
        else None,  # -1 with no cable plugged in
        "kind": first_line(base, "type"),
    }


def resolve_names(names):
    """Return {name: addresses} from this machine's resolver; no addresses for a name that takes
    longer than 5 s.
    """
    import threading

    addresses = {name: [] for name in names}

    def ask(name):
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses[name] = list({entry[4][0].partition("%")[0]: None for entry in entries})
        except (OSError, UnicodeError):
            return

    askers = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + 5
    for asker in askers:
        asker.join(max(0, deadline - time.monotonic()))
    return dict(addresses)


def route_to(address):
    """Return how the kernel would send to an address: interface, source, gateway; None if it has no
    route.

    The kernel is asked directly, as `ip route get` does (rtnetlink(7)): RTM_GETROUTE 26, answered
    by RTM_NEWROUTE 24.
    """
    import struct

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    destination = socket.inet_pton(family, address)
    message = struct.pack("=8BI", family, 8 * len(destination), 0, 0, 0, 0, 0, 0, 0)
    message += struct.pack("=HH", 4 + len(destination), 1) + destination
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2)
        try:
            kernel.send(struct.pack("=IHHII", 16 + len(message), 26, 1, 1, 0) + message)
            answer = kernel.recv(8192)
        except OSError:
            return None
    if struct.unpack_from("=H", answer, 4)[0] != 24:
        return None
    values = netlink_attributes(answer[28:])
    name = socket.if_indextoname(struct.unpack("=I", values[4])[0])
    source, gateway = (
        socket.inet_ntop(family, values[kind]) if kind in values else None for kind in (7, 5)
    )
    route = {
        "to": address,
        "interface": name,
        "source": source,
        "gateway": gateway,
        "local": answer[23] == 2,
    }
    return dict(interface_facts(name) or {}, **route)


def netlink_attributes(data):
    """Return the attributes of a message of the kernel, bytes by type."""
    import struct

    values, at = {}, 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        values[kind] = data[at + 4 : at + size]
        at += max(4, (size + 3) & ~3)
    return values


def networks():
    """Return the facts of every interface with an address that others can reach, with ``name`` and
    ``addresses``: 10.11.0.2/24.

    The kernel is asked directly, as `ip address` does (rtnetlink(7)): RTM_GETADDR 22 for all
    (NLM_F_DUMP 0x300), answered by one RTM_NEWADDR 20 for each address. Addresses of a link or of
    this host alone have a scope of 253 or more.
    """
    import struct

    addresses = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2)
        try:
            kernel.send(struct.pack("=IHHII8x", 24, 22, 0x301, 1, 0))
            messages, is_over = b"", False
            while not is_over:
                messages = messages or kernel.recv(1 << 17)
                size, kind = struct.unpack_from("=IH", messages)
                is_over = kind != 20
                if not is_over:
                    family, bits, _, scope, index = struct.unpack_from("=4BI", messages, 16)
                    values = netlink_attributes(messages[24:size])
                    address = values.get(2) or values.get(
                        1
                    )  # IFA_LOCAL, and IFA_ADDRESS where that is all there is
                    if address and scope < 253:
                        text = "%s/%d" % (socket.inet_ntop(family, address), bits)
                        addresses.setdefault(socket.if_indextoname(index), []).append(text)
                messages = messages[max(16, (size + 3) & ~3) :]
        except (OSError, ValueError, struct.error):
            return []
    facts = {name: interface_facts(name) for name in sorted(addresses)}
    return [
        dict(facts[name], name=name, addresses=addresses[name]) for name in facts if facts[name]
    ][:MOST_LINES]


def infiniband_ports(base="/sys/class/infiniband"):
    """Return every port of every InfiniBand or RoCE device, in the kernel's own words.

    ``gids`` has [index, address, type, network device] of those that are set: unset ones are zero,
    and there may be hundreds. ``pkeys`` has [index, key] of those that are set.
    """
    import glob

    ports = []
    for path in sorted(glob.glob(os.path.join(base, "*", "ports", "*"))):
        device = path.split(os.sep)[-3]
        port = {
            name: first_line(path, name)
            for name in ("state", "phys_state", "rate", "link_layer", "lid")
        }
        port.update(
            device=device, port=os.path.basename(path), firmware=first_line(base, device, "fw_ver")
        )
        port["interfaces"] = sorted(names_in(os.path.join(base, device, "device", "net")))
        port["gids"] = []
        for index in sorted(names_in(os.path.join(path, "gids")), key=int):
            gid = first_line(path, "gids", index)
            if gid.replace("fe80:", "").strip("0:") and len(port["gids"]) < MOST_LINES:
                port["gids"].append(
                    [int(index), gid]
                    + [first_line(path, "gid_attrs", name, index) for name in ("types", "ndevs")]
                )
        pkeys = os.path.join(path, "pkeys")
        keys = [[int(index), first_line(pkeys, index)] for index in names_in(pkeys)]
        port["pkeys"] = sorted(pair for pair in keys if pair[1].strip("0x"))[:MOST_LINES]
        ports.append(port)
    return ports
