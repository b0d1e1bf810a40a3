#!/bin/sh
# Installs the Debian packages that the tests need and that are missing. Without root it only says what is missing: the
# tests that need them then skip, and fail where CI=true.
set -eu

missing=
want() { # command package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
want gcc gcc
want iptables-nft iptables
want iptables-legacy iptables
want nft nftables
want ip iproute2
want ipset ipset
want conntrack conntrack
want strace strace
want tmux tmux
want debootstrap debootstrap
want unshare util-linux
want setpriv util-linux
want ps procps
[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "these packages are missing and only root can install them:$missing" >&2
	exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # one word a package
apt-get install -y -qq --no-install-recommends ca-certificates $missing >/dev/null
