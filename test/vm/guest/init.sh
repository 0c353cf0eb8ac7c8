#!/bin/sh
# The guest's first process: prepares the system, runs the job, brings back its results.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run/netns /results /root
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
stty -F /dev/ttyS0 raw -echo
stty -F /dev/ttyS1 raw -echo
# Not every kernel has all of them, and some have them built in.
modprobe -qa $(cat /etc/modules) 2>/dev/null
ip link set lo up
# ipset knows protocols by their names.
printf '%s\n' 'icmp 1 ICMP' 'tcp 6 TCP' 'udp 17 UDP' 'ipv6-icmp 58 IPv6-ICMP' 'sctp 132 SCTP' >/etc/protocols
# With the default the kernel drops what a slow processor has not taken yet.
sysctl -qw net.core.netdev_max_backlog=100000
# The kernel patches the code that calls hooks when the first hook of a kind is added, and when the
# last one is removed. QEMU 7.2 may go on executing the breakpoint that is there meanwhile, and both
# processors hang. So there are always hooks of each kind, where no test looks.
ip netns add hooks
for family in ip ip6 bridge arp; do
	hooks='input output'
	[ $family = arp ] || hooks="prerouting $hooks forward postrouting"
	echo "table $family hooks {"
	for hook in $hooks; do
		echo "chain $hook { type filter hook $hook priority 0; }"
	done
	echo '}'
done | ip netns exec hooks nft -f -
echo "guest: Linux $(uname -r)"
sh /job/run </dev/null
echo $? >/job/status
tar -C / -cf /dev/ttyS1 job/status results
poweroff -f
