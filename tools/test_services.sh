#!/usr/bin/env bash
# Chromium and PostgreSQL for the tests of the service and its pages: installed where this runs as root on
# Debian or Ubuntu; anybody else is told the command. Without them those tests skip, and say so.
set -uo pipefail

missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing+=(chromium)
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
if [ ${#missing[@]} -eq 0 ]; then
    echo "chromium and postgresql are there"
    exit 0
fi
install="apt-get install --yes --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "install with your system's packages: ${missing[*]}" >&2
elif [ "$(id -u)" -ne 0 ]; then
    echo "as root: $install" >&2
else
    export DEBIAN_FRONTEND=noninteractive
    { $install || { apt-get update && $install; }; } >/dev/null 2>&1 && exit 0
    echo "not installed, so their tests will skip: ${missing[*]}" >&2
fi
exit "${1:-1}"
