#!/bin/bash
# check.sh bundle DIRECTORY SUITE...: quantizes the example model, and evaluates
#   the result, by the bundle in bare roots of Debian's releases.
# check.sh deb FILE SUITE...: the same by the package, installed there.
# As root, with debootstrap; roots are made anew in build/roots and removed.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=$1 thing=$(readlink -f "$2")
shift 2
GLIBC_MAX=2.34 SIZE_MAX=60000000

skip() {
    echo "check-$what: $1: skipped" >&2
    exit 77
}
die() {
    echo "check-$what: $1" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || skip 'needs root'
command -v debootstrap >/dev/null || skip 'no debootstrap here'

# What an executable or a library wants of glibc, the highest version.
glibc_of() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1; }
if [ "$what" = bundle ]; then
    find "$thing/bin" "$thing/lib" -type f | while read -r file; do
        [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
        needs=$(glibc_of "$file")
        [ "$(printf '%s\n' "GLIBC_$GLIBC_MAX" "$needs" | sort -V | tail -n 1)" = \
            "GLIBC_$GLIBC_MAX" ] || die "${file##*/} needs $needs"
    done
    size=$(du -sb "$thing" | cut -f 1)
    [ "$size" -le "$SIZE_MAX" ] || die "$size bytes: more than $SIZE_MAX"
    echo "bundle: $size bytes, glibc $GLIBC_MAX will do"
fi

# Everything is mounted in a name space that ends with its process, so no mount
# is there when the root is removed; and that is looked at.
root=
remove() {
    [ -n "$root" ] && [ -d "$root" ] || return 0
    if findmnt -rno TARGET | grep -qF "$root"; then
        echo "check-$what: '$root' has mounts: left as it is" >&2
        return
    fi
    rm -rf "$root"
}
trap remove EXIT
inside() {
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --pid --fork --propagation private bash -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root "$@"' _ "$root" "$@"
}

for suite; do
    root=$PWD/build/roots/$suite
    remove
    mkdir -p "$root"
    debootstrap --variant=minbase "$suite" "$root" >"$root.log" 2>&1 ||
        die "debootstrap $suite fails: $root.log"
    mkdir -p "$root/demo/scripts"
    cp scripts/demo "$root/demo/scripts"
    cp -r examples "$root/demo"
    if [ "$what" = bundle ]; then
        cp -r "$thing" "$root/opt/4bit-forge"
        ln -s /opt/4bit-forge/bin "$root/demo/bin"
    else
        cp "$thing" "$root/demo/4bit-forge.deb"
        cp /etc/resolv.conf "$root/etc"
        inside apt-get -qq update
        inside env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
            --no-install-recommends install /demo/4bit-forge.deb >>"$root.log" 2>&1 ||
            die "installing fails: $root.log"
        ln -s /usr/bin "$root/demo/bin"
    fi
    echo "== $what in a bare $suite ($(cat "$root/etc/debian_version"))"
    inside sh /demo/scripts/demo --run
    remove
done
