# Sourced by the other scripts: shared paths and helpers.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${SOFTROCE_CACHE:-$(dirname "$(dirname "$HERE")")/target/softroce}
# Where the sockets, logs and pid files of running guests live.
RUN=${SOFTROCE_RUN:-${XDG_RUNTIME_DIR:-/tmp}/softroce-run.$(id -u)}
KERNEL=${SOFTROCE_KERNEL:-6.1}

die() { echo "${0##*/}: $*" >&2; exit 1; }
