#!/usr/bin/env bash
# Boots a Soft-RoCE guest and waits until it answers. Needs root for the taps.
#
#   run-peer.sh NAME [options] --nic TAP[,key=value...] [--nic ...]
#
# --nic TAP,...    attach a NIC to the tap device TAP (made if missing), rxeI on it:
#                    mac=52:54:00:..   ip=10.0.0.2/24   ip6=fd00::2/64   mtu=1500
#                    bridge=BR (put the tap in this bridge)   rxe=0 (no rxe on this NIC)
# --netns NS       the network namespace with the taps (default: the current one)
# --share DIR      show this host folder at /mnt in the guest, read-only
# --share-rw DIR   the same, writable
# --kernel 6.1|6.12  --cache DIR    the image, from build-image.sh
# --smp N (2)  --mem MIB (768)  --cpu MODEL (Nehalem, the quickest here)  --append "kernel arguments"
# --timeout S (90) for the boot    --life S (3600): it is ended after that long
# --qemu "more qemu arguments"
#
# Prints "ready NAME SECONDS". Then: peer-exec NAME 'command', stop-peer.sh NAME.
# Sockets (cmd0.sock to cmd7.sock: commands, qmp.sock: QEMU's own), logs and pid are in $SOFTROCE_RUN/NAME.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=${1:-}
case $name in -h|--help|'') sed -n '2,19s/^# \?//p' "$0"; exit 0 ;; -*|*/*) die "the first argument is the peer's name" ;; esac
shift
ns= share= share_ro=on smp=2 mem=768 cpu=Nehalem append= limit=90 life=3600 more= nics=()
while [ $# -gt 0 ]; do
    case $1 in
        --nic) nics+=("$2") ;;
        --netns) ns=$2 ;;
        --share) share=$2 ;;
        --share-rw) share=$2 share_ro=off ;;
        --kernel) KERNEL=$2 ;;
        --cache) CACHE=$2 ;;
        --smp) smp=$2 ;;
        --mem) mem=$2 ;;
        --cpu) cpu=$2 ;;
        --append) append=$2 ;;
        --timeout) limit=$2 ;;
        --life) life=$2 ;;
        --qemu) more=$2 ;;
        *) die "unknown argument: $1" ;;
    esac
    shift 2
done
IMG=$CACHE/$KERNEL
[ -f "$IMG/stamp" ] || die "no image for kernel $KERNEL in $CACHE: run build-image.sh --kernel $KERNEL"
[ ${#nics[@]} -gt 0 ] || die "give at least one --nic"
dir=$RUN/$name
if [ -f "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; then die "$name is running already"; fi
rm -rf "$dir"; mkdir -p "$dir"

innet() { if [ -n "$ns" ]; then ip netns exec "$ns" "$@"; else "$@"; fi; }

cmdline="console=ttyS0 panic=-1 mitigations=off nokaslr quiet peer.name=$name peer.nics=${#nics[@]}"
qemu=(qemu-system-x86_64 -name "$name" -accel tcg,thread=multi -machine q35 -smp "$smp" -cpu "$cpu" -m "$mem"
    -nodefaults -no-user-config -no-reboot -display none
    -serial "file:$dir/console.log" -device virtio-rng-pci -qmp "unix:$dir/qmp.sock,server=on,wait=off"
    -kernel "$IMG/vmlinux" -initrd "$IMG/initramfs.cpio" -device virtio-serial-pci,max_ports=16)
for i in 0 1 2 3 4 5 6 7; do
    qemu+=(-chardev "socket,id=c$i,path=$dir/cmd$i.sock,server=on,wait=off" -device "virtserialport,chardev=c$i,name=cmd$i")
done
i=0
for spec in "${nics[@]}"; do
    tap=${spec%%,*} mac= ip= ip6= mtu=1500 bridge= rxe=1
    IFS=, read -ra kv <<<"$spec"
    for w in "${kv[@]:1}"; do
        case $w in mac=*|ip=*|ip6=*|mtu=*|bridge=*|rxe=*) declare "${w%%=*}=${w#*=}" ;; *) die "--nic: unknown $w" ;; esac
    done
    # A MAC that depends on the peer's name, so that it is the same each time.
    [ -n "$mac" ] || mac=52:54:00:$(printf '%s' "$name/$i" | sha256sum | sed 's/^\(..\)\(..\)\(..\).*/\1:\2:\3/')
    innet ip link show "$tap" >/dev/null 2>&1 || innet ip tuntap add "$tap" mode tap
    innet sh -c "echo 1 > /proc/sys/net/ipv6/conf/$tap/disable_ipv6" 2>/dev/null || true
    [ -z "$bridge" ] || innet ip link set "$tap" master "$bridge"
    # A queue for all that a peer without a window (UC, READ responses) sends at once: the guest is slow.
    innet ip link set "$tap" mtu "$mtu" txqueuelen 20000 up
    # No offloads: what is on the tap is what would be on a wire.
    qemu+=(-netdev "tap,id=n$i,ifname=$tap,script=no,downscript=no,vhost=off"
        -device "virtio-net-pci,netdev=n$i,mac=$mac,host_mtu=$mtu,romfile=,rx_queue_size=1024,csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off,mrg_rxbuf=on")
    cmdline+=" peer.ip$i=$ip peer.ip6$i=$ip6 peer.mtu$i=$mtu peer.rxe$i=$rxe"
    i=$((i + 1))
done
if [ -n "$share" ]; then
    qemu+=(-fsdev "local,id=share,path=$(cd "$share" && pwd),security_model=none,readonly=$share_ro"
        -device virtio-9p-pci,fsdev=share,mount_tag=host)
    cmdline+=" peer.share=1"
fi
qemu+=(-append "$cmdline $append" $more)

start=$(date +%s.%N)
( exec </dev/null >"$dir/qemu.log" 2>&1
  if [ -n "$ns" ]; then exec setsid timeout -k 5 "$life" ip netns exec "$ns" "${qemu[@]}"; else exec setsid timeout -k 5 "$life" "${qemu[@]}"; fi ) &
pid=$!
trap 'kill "$pid" 2>/dev/null' INT TERM
echo "$pid" > "$dir/pid"
for ((t = 0; t < limit * 20; t++)); do
    if grep -qs 'PEER READY' "$dir/console.log"; then
        echo "ready $name $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN{printf "%.1f", b-a}')"
        exit 0
    fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
done
kill "$pid" 2>/dev/null || true
tail -n 20 "$dir/qemu.log" "$dir/console.log" >&2
die "$name did not come up"
