# Sourced by the tools: installs what a system lacks, by its package manager.

install_package() {
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    if ! command -v apt-get >/dev/null; then
        echo "$(basename "$0"): the package $1 is missing (its name in Debian): install it" >&2
        exit 3
    fi
    # Its words are for people who wait, not part of what the tool prints.
    "${root[@]}" apt-get update -q >&2
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$1" >&2
}

# need COMMAND PACKAGE: installs a package unless its command is there.
need() {
    command -v "$1" >/dev/null || install_package "$2"
}

# needs FILE PACKAGE: installs a package unless its file is there.
needs() {
    [ -e "$1" ] || install_package "$2"
}

# What every build needs beside Rust: a C compiler, and protoc for the messages of etcd.
need_build_packages() {
    need cc gcc
    need protoc protobuf-compiler
    needs /usr/include/google/protobuf/descriptor.proto libprotobuf-dev
}
