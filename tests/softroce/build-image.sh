#!/usr/bin/env bash
# Builds the Soft-RoCE guest: Debian's stock kernel (unpacked, not installed)
# and an initramfs with rdma_rxe, rdma-core, perftest and this folder's tools.
#
#   build-image.sh [--kernel 6.1|6.12] [--cache DIR] [--force]
#
# Everything goes below the cache folder (default target/softroce of the checkout,
# or $SOFTROCE_CACHE). A second call with nothing changed returns at once.
# Exit code 77: this machine lacks something (named on standard error).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

force=
while [ $# -gt 0 ]; do
    case $1 in
        --kernel) KERNEL=$2; shift 2 ;;
        --cache) CACHE=$2; shift 2 ;;
        --force) force=1; shift ;;
        -h|--help) sed -n '2,10s/^# \?//p' "$0"; exit 0 ;;
        *) die "unknown argument: $1" ;;
    esac
done

lacks() { echo "${0##*/}: $*" >&2; exit 77; }

# What builds and runs the guest: a program, and the Debian package that has it.
need="qemu-system-x86_64:qemu-system-x86 depmod:kmod cpio:cpio xz:xz-utils readelf:binutils gcc:gcc python3:python3 apt-get:apt dpkg-deb:dpkg"
missing=
for t in $need; do
    command -v "${t%%:*}" >/dev/null || missing="$missing ${t#*:}"
done
[ -z "$missing" ] || lacks "programs are missing; install:$missing"
[ "$(dpkg --print-architecture)" = amd64 ] || lacks "the guest is built from this machine's packages, and must be amd64"

case $KERNEL in
    6.1)  META=linux-image-amd64 ;;
    6.12) META=linux-image-6.12-amd64 ;;
    *) die "--kernel must be 6.1 or 6.12" ;;
esac
kernel_package() {
    apt-cache depends "$META" 2>/dev/null | awk '$1=="Depends:" && $2 ~ /^linux-image-/ {print $2; exit}'
}
KPKG=$(kernel_package)
if [ -z "$KPKG" ]; then
    apt-get -qq update >&2 || true
    KPKG=$(kernel_package)
fi
[ -n "$KPKG" ] || lacks "apt knows no $META"
KREL=${KPKG#linux-image-}

# Packages whose files go into the guest (their dependencies come along).
GUEST_PKGS="busybox-static dash ibverbs-utils ibverbs-providers rdmacm-utils perftest
            iproute2 nftables tcpdump ethtool iperf3 libibverbs-dev librdmacm-dev"
# Programs copied into the guest, with the libraries they need.
GUEST_BINS="ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong
            rping ucmatose udpong rdma_server rdma_client rdma_xserver rdma_xclient mckey udaddy riostream rcopy cmtime
            ib_write_bw ib_write_lat ib_send_bw ib_send_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat
            ip tc rdma ss bridge nft tcpdump ethtool iperf3 dash"
# Kernel modules (and what modules.dep says they need).
GUEST_MODS="virtio_pci virtio_net virtio_console virtio_rng 9p 9pnet_virtio virtio_blk
            ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe crc32_generic crc32-pclmul
            nvmet nvmet_rdma nvme_rdma brd
            af_packet veth bridge dummy tun 8021q
            sch_netem sch_ingress sch_tbf cls_u32 cls_matchall cls_bpf act_gact act_bpf act_mirred
            nf_tables nft_numgen nft_limit nft_quota nft_ct"

OUT=$CACHE/$KREL
stamp=$( { echo "$KREL"; cat "$HERE/build-image.sh" "$HERE"/guest/*; } | sha256sum | cut -d' ' -f1)
if [ -z "$force" ] && [ "$(cat "$OUT/stamp" 2>/dev/null)" = "$stamp" ]; then
    ln -sfn "$KREL" "$CACHE/$KERNEL"
    echo "$OUT is up to date"; exit 0
fi
mkdir -p "$OUT" "$CACHE/debs/partial"

# --- fetch -----------------------------------------------------------------
# An empty dpkg status makes apt download the whole dependency closure without
# looking at, or touching, what is installed here.
: > "$CACHE/empty-status"
APT_OPTS=(-q -y --no-install-recommends
    -o Dir::State::status="$CACHE/empty-status"
    -o Dir::Cache::archives="$CACHE/debs"
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
fetch() {
    apt-get "${APT_OPTS[@]}" -s install $GUEST_PKGS 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*\[\([a-z0-9]*\)\]).*/\1_\2_\3.deb/p' |
        sed 's/:amd64_/_/; s/:/%3a/' | sort > "$OUT/guest-debs"
    [ -s "$OUT/guest-debs" ] || return 1
    apt-get "${APT_OPTS[@]}" --download-only install $GUEST_PKGS >"$OUT/apt.log" 2>&1 || return 1
    ( cd "$CACHE/debs" && ls "${KPKG}"_*_amd64.deb >/dev/null 2>&1 ||
        apt-get -q -o APT::Sandbox::User=root download "$KPKG" >>"$OUT/apt.log" 2>&1 )
}
# A second try with fresh lists: Debian removes packages that it has newer ones of.
fetch || { apt-get -qq update >&2 && fetch; } ||
    { tail -5 "$OUT/apt.log" >&2; lacks "apt can't fetch the packages of the guest"; }
KDEB=$(ls -v "$CACHE/debs/${KPKG}"_*_amd64.deb | tail -1)

# --- unpack ----------------------------------------------------------------
W=$(mktemp -d "$OUT/work.XXXXXX")
trap 'rm -rf "$W"' EXIT
S=$W/stage K=$W/kernel R=$W/root
mkdir -p "$S" "$K" "$R"
while read -r deb; do
    dpkg-deb --fsys-tarfile "$CACHE/debs/$deb" | tar -x -C "$S" --exclude=./usr/share --exclude=./usr/lib/python3
done < "$OUT/guest-debs"
dpkg-deb --fsys-tarfile "$KDEB" | tar -x -C "$K"
MODDIR=$K/lib/modules/$KREL
[ -d "$MODDIR" ] || MODDIR=$K/usr/lib/modules/$KREL

# --- kernel ----------------------------------------------------------------
# The uncompressed vmlinux boots through its PVH entry, which saves the slow
# decompression under emulation. Fall back to bzImage if it cannot be taken out.
python3 - "$K/boot/vmlinuz-$KREL" "$OUT/vmlinux" <<'PY'
import sys, lzma, zlib, subprocess
src = open(sys.argv[1], 'rb').read()
for magic, dec in ((b'\xfd7zXZ\0', lambda b: lzma.LZMADecompressor().decompress(b)),
                   (b'\x28\xb5\x2f\xfd', lambda b: subprocess.run(['zstd', '-dcq'], input=b, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout),
                   (b'\x1f\x8b\x08', lambda b: zlib.decompressobj(31).decompress(b))):
    at = src.find(magic)
    while at >= 0:
        try:
            out = dec(src[at:])
        except Exception:
            out = b''
        if out[:4] == b'\x7fELF':
            open(sys.argv[2], 'wb').write(out)
            sys.exit(0)
        at = src.find(magic, at + 1)
sys.exit('no ELF image in the bzImage')
PY
cp "$K/boot/vmlinuz-$KREL" "$OUT/vmlinuz"

# --- root ------------------------------------------------------------------
mkdir -p "$R"/{bin,etc/libibverbs.d,proc,sys,dev,tmp,run,mnt,root,lib64,lib/x86_64-linux-gnu,usr/lib/x86_64-linux-gnu/libibverbs,var/run}
ln -s bin "$R/sbin"; ln -s ../bin "$R/usr/bin"; ln -s ../bin "$R/usr/sbin"
cp "$S/bin/busybox" "$R/bin/busybox"
for a in $("$R/bin/busybox" --list); do [ "$a" = busybox ] || ln -s busybox "$R/bin/$a"; done
cp "$S/etc/libibverbs.d/rxe.driver" "$R/etc/libibverbs.d/"
mkdir -p "$R/etc/iproute2"; cp -a "$S"/etc/iproute2/. "$R/etc/iproute2/" 2>/dev/null || true
cp "$HERE/guest/init" "$R/init"
cp "$HERE/guest/veth-pair" "$R/bin/veth-pair"; chmod 755 "$R/init" "$R/bin/veth-pair"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\ntcpdump:x:0:0::/:/bin/false\n' > "$R/etc/passwd"
printf 'root:x:0:\n' > "$R/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$R/etc/hosts"
printf 'passwd: files\ngroup: files\nhosts: files\n' > "$R/etc/nsswitch.conf"

CC=${CC:-gcc}
INC=$S/usr/include LIB=$S/usr/lib/x86_64-linux-gnu
$CC -O2 -Wall -static -o "$R/bin/peerd" "$HERE/guest/peerd.c"
$CC -O2 -Wall -I"$INC" -o "$R/bin/vsh" "$HERE/guest/vsh.c" -L"$LIB" -libverbs -Wl,-rpath-link,"$LIB"

bins=("$R/bin/vsh")
rm "$R/bin/sh"; ln -s dash "$R/bin/sh"   # busybox sh would prefer its own applets, such as ip
for b in $GUEST_BINS; do
    for d in bin sbin usr/bin usr/sbin; do
        if [ -x "$S/$d/$b" ]; then
            rm -f "$R/bin/$b"; cp -L "$S/$d/$b" "$R/bin/$b"; bins+=("$R/bin/$b"); continue 2
        fi
    done
    echo "note: $b is not in the packages" >&2
done
cp -L "$S"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so "$R/usr/lib/x86_64-linux-gnu/libibverbs/"
cp -L "$S/lib64/ld-linux-x86-64.so.2" "$R/lib64/" 2>/dev/null || cp -L "$S/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" "$R/lib64/"

# Copies the closure of the shared libraries that the programs need. A binary
# built on the host for Debian 12 also finds libc, libm, libgcc_s and libstdc++.
python3 - "$S" "$R" "${bins[@]}" "$R"/usr/lib/x86_64-linux-gnu/libibverbs/*.so <<'PY'
import sys, os, shutil, subprocess
stage, root, todo = sys.argv[1], sys.argv[2], sys.argv[3:]
dirs = ['lib/x86_64-linux-gnu', 'usr/lib/x86_64-linux-gnu', 'lib64']
def needed(p):
    out = subprocess.run(['readelf', '-d', p], capture_output=True, text=True).stdout
    return [l.split('[')[1].rstrip(']\n') for l in out.splitlines() if '(NEEDED)' in l]
seen, extra = set(), ['libgcc_s.so.1', 'libm.so.6', 'libdl.so.2', 'libpthread.so.0', 'librt.so.1', 'libnss_files.so.2', 'libstdc++.so.6']
queue = [n for p in todo for n in needed(p)] + extra
while queue:
    n = queue.pop()
    if n in seen:
        continue
    seen.add(n)
    for d in dirs:
        p = os.path.join(stage, d, n)
        if os.path.exists(p):
            dst = os.path.join(root, 'usr/lib/x86_64-linux-gnu', n)
            shutil.copy(os.path.realpath(p), dst)
            os.chmod(dst, 0o755)
            queue += needed(dst)
            break
    else:
        if n not in extra:
            sys.exit(f'library {n} not found in the packages')
PY
find "$R/bin" "$R/usr/lib" -type f -exec strip --strip-unneeded {} + 2>/dev/null || true

# Modules, uncompressed, with a fresh modules.dep.
M=$R/lib/modules/$KREL
mkdir -p "$M"
cp "$MODDIR"/modules.{builtin,order} "$M/" 2>/dev/null || true
cp "$MODDIR"/modules.builtin.modinfo "$M/" 2>/dev/null || true
depmod -b "${MODDIR%/lib/modules/*}" "$KREL" 2>/dev/null || true
python3 - "$MODDIR" "$M" $GUEST_MODS <<'PY'
import sys, os, lzma, shutil, subprocess
src, dst, want = sys.argv[1], sys.argv[2], [w.replace('-', '_') for w in sys.argv[3:]]
dep = {}
for l in open(os.path.join(src, 'modules.dep')):
    k, v = l.split(':', 1)
    dep[k] = v.split()
name = lambda p: os.path.basename(p).split('.ko')[0].replace('-', '_')
by = {name(p): p for p in dep}
builtin = {name(l.strip()) for l in open(os.path.join(src, 'modules.builtin'))}
take = set()
for w in want:
    if w in by:
        take |= {by[w], *dep[by[w]]}
    elif w not in builtin:
        print(f'note: this kernel has no module {w}', file=sys.stderr)
for p in take:
    out = os.path.join(dst, p)
    for x in ('.xz', '.zst', '.gz'):
        out = out.removesuffix(x)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    s = os.path.join(src, p)
    if p.endswith('.xz'):
        open(out, 'wb').write(lzma.open(s).read())
    elif p.endswith('.zst'):
        subprocess.run(['zstd', '-dq', s, '-o', out], check=True)
    else:
        shutil.copy(s, out)
PY
find "$M" -name '*.ko' -exec strip --strip-debug {} +
depmod -b "$R" "$KREL"

{
    echo "kernel: $(basename "$KDEB" _amd64.deb)"
    grep -E '^(ibverbs-utils|ibverbs-providers|libibverbs1|librdmacm1|rdmacm-utils|perftest|iproute2|libc6)_' "$OUT/guest-debs" |
        sed 's/_[a-z0-9]*\.deb$//; s/_/ /; s/%3a/:/'
} > "$R/etc/versions"
( cd "$R" && find . -print0 | LC_ALL=C sort -z | cpio -0 -o -H newc --quiet -R 0:0 ) > "$OUT/initramfs.cpio"

cp "$R/etc/versions" "$OUT/VERSIONS"
echo "$stamp" > "$OUT/stamp"
ln -sfn "$KREL" "$CACHE/$KERNEL"
echo "built $OUT: vmlinux $(stat -c %s "$OUT/vmlinux") bytes, initramfs $(stat -c %s "$OUT/initramfs.cpio") bytes"
