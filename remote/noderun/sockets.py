"""The TCP connections of a process, and what goes over the network cards, from /proc."""

import os
import socket
import struct

from noderun.sysfs import names_in

ESTABLISHED = "01"
LISTENING = "0A"
MOST_CONNECTIONS = 96


def tcp_rows(pid):
    """Return {inode: (state, local address, local port, remote address, remote port, tx bytes, rx
    bytes, retransmits)} of the TCP sockets in the network that a process has; as documented in
    Documentation/networking/proc_net_tcp.rst. Probes that nobody answers count as retransmits: what
    cannot even leave this node is probed for."""
    rows = {}
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/%d/net/%s" % (pid, name)) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10:
                continue
            local, remote = (address_of_words(word) for word in words[1:3])
            sent, received = (int(word, 16) for word in words[4].split(":"))
            rows[words[9]] = (
                (words[3],)
                + local
                + remote
                + (sent, received, max(int(words[6], 16), int(words[8])))
            )
    return rows


def address_of_words(text):
    """Return (address, port) of a column of /proc/net/tcp: words in the byte order of the machine,
    in hexadecimal.
    """
    words, _, port = text.partition(":")
    data = b"".join(
        struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)
    )
    if len(data) == 4:
        return socket.inet_ntop(socket.AF_INET, data), int(port, 16)
    if data[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, data[12:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, data), int(port, 16)


def inodes(pid):
    """Return the numbers of the sockets that a process has open."""
    numbers = set()
    for descriptor in names_in("/proc/%d/fd" % pid):
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, descriptor))
        except OSError:
            continue
        if target.startswith("socket:["):
            numbers.add(target[8:-1])
    return numbers


def connections(pid):
    """Return [[local address, local port, remote address, remote port, bytes not yet acknowledged,
    bytes not yet read, retransmissions without an answer]] of the open TCP connections of a
    process; those with a backlog first."""
    rows, own = tcp_rows(pid), inodes(pid)
    established = [
        list(row[1:]) for inode, row in rows.items() if inode in own and row[0] == ESTABLISHED
    ]
    return sorted(established, key=lambda row: (-row[6], -row[4], -row[5]))[:MOST_CONNECTIONS]


def listens_at(pids, port):
    """Return the address at which one of these processes listens on a port; empty if none does."""
    for pid in pids:
        own = inodes(pid)
        if own:
            for inode, row in tcp_rows(pid).items():
                if inode in own and row[0] == LISTENING and row[2] == port:
                    return row[1]
    return ""


def interfaces():
    """Return {name: [bytes received, receive errors and drops, bytes sent, send errors and drops]}
    of this node's cards.
    """
    counts = {}
    with open("/proc/self/net/dev") as file:
        for line in file:
            name, colon, words = line.partition(":")
            if colon and name.strip() != "lo":
                numbers = [int(word) for word in words.split()]
                counts[name.strip()] = [
                    numbers[0],
                    numbers[2] + numbers[3],
                    numbers[8],
                    numbers[10] + numbers[11],
                ]
    return counts
