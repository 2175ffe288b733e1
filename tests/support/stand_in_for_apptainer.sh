#!/bin/bash
# A stand-in for apptainer and enroot, which Debian 12 does not have: what they do without privileges, by unshare and chroot.
# stand_in_for_apptainer.sh ROOTFS WORKDIR COMMAND…
set -euo pipefail
rootfs=$1 workdir=$2
shift 2
exec unshare --user --map-root-user --mount bash -ec '
  rootfs=$1 workdir=$2
  shift 2
  mount --bind "$rootfs" "$rootfs"
  for each in /proc /sys /dev; do mount --rbind "$each" "$rootfs$each"; done
  mkdir -p "$rootfs$workdir"
  mount --bind "$workdir" "$rootfs$workdir"
  exec /usr/sbin/chroot "$rootfs" "$@"' enter "$rootfs" "$workdir" "$@"
