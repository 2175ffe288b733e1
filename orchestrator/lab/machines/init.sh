#!/bin/sh
# First program of a machine, in its initramfs: mount the node's view of the files, read-only below
# an overlay in memory, and become the script that the kernel's command line names as lab_boot.
mkdir -p /proc /sys /dev /lower /memory /new
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/lib/modules/$module" || echo "not loaded: $module"
done </order
if [ -n "$lab_trial" ]; then
    echo "lab: the kernel has started"
    reboot -f
fi
# Nothing changes below the overlay while the machine is up, so that all of it may be cached.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro root /lower
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work root /new
for folder in proc sys dev; do
    mount --move "/$folder" "/new/$folder"
done
exec switch_root /new /bin/sh "$lab_boot"
