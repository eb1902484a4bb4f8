#!/usr/bin/env bash
# Runs the suites of databases and broker on the servers of newer releases of Debian, each
# release a directory below MATRIX_DIR, made when it is missing (1.3 GB). It needs root
# and debootstrap, and the mirror is the one that apt uses.
#
#   internal/test/matrix.sh [ROW...]                # `make matrix`: rows as below, or all
#   internal/test/matrix.sh turn                    # CI: the first suite of one row, another each day
#   internal/test/matrix.sh enter RELEASE COMMAND   # a command of this tree beside a release's servers
#   rm -r /var/cache/waybill-matrix                 # a later run makes it again, with newer packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

all='mariadb-11.8 mysql-9.7 postgresql-17 postgresql-18 rabbitmq-4.0 rabbitmq-4.3'
dir=${MATRIX_DIR:-/var/cache/waybill-matrix}

die() { echo "matrix: $*" >&2; exit 1; }

# release ROW: the release of Debian that has the server.
release() {
	case $1 in
	mariadb-11.8 | postgresql-17 | rabbitmq-4.0) echo trixie ;;
	mysql-9.7 | postgresql-18 | rabbitmq-4.3) echo sid ;;
	*) die "no row $1; there are: $all" ;;
	esac
}

# suites ROW: the commands of a row, one a line.
suites() {
	case $1 in
	mariadb-* | mysql-*) printf '%s\n' './waymysql' './internal/test/e2e -run /mariadb' '-tags chaos ./internal/test/chaos -args -on mariadb' ;;
	postgresql-*) printf '%s\n' './waypg' './internal/test/e2e -run /postgres' '-tags chaos ./internal/test/chaos -args -on postgres' ;;
	rabbitmq-*) printf '%s\n' './wayamqp' './internal/test/e2e' ;;
	esac
}

# version ROW: the version of the server's package, without epoch and revision.
version() {
	chroot "$dir/$(release "$1")" dpkg-query -W -f '${Package} ${Version}\n' "${1%-*}-server*" "${1%-*}-1*" 2>/dev/null |
		sed -nE 's/^(rabbitmq-server|mariadb-server|mysql-server|postgresql-[0-9]+) ([0-9]+:)?([0-9.]+).*/\3/p' | head -n 1
}

# enter RELEASE COMMAND...: the command in this directory, with Go and its caches, below
# the release's directory. Its mounts and all of its processes end with it.
enter() {
	GOROOT=$(go env GOROOT) GOMODCACHE=$(go env GOMODCACHE) GOCACHE=$(go env GOCACHE)
	export GOROOT GOMODCACHE GOCACHE GOFLAGS=-buildvcs=false GOTOOLCHAIN=local LC_ALL=C.UTF-8 HOME=/root
	# shellcheck disable=SC2016
	env -u TMPDIR PATH="$GOROOT/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		unshare --mount --pid --ipc --fork --kill-child bash -c '
		set -eu
		unset ${!WAYBILL_@}
		[ "$2" != sid ] || export WAYBILL_TEST_ON_MYSQL=1
		root=$1/$2
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		for shared in "$GOROOT" "$GOMODCACHE" "$GOCACHE" "$PWD"; do
			mkdir -p "$shared" "$root$shared"
			mount --bind "$shared" "$root$shared"
		done
		chroot "$root" env -C "$PWD" "${@:3}" &
		wait $!' matrix "$dir" "$@"
}

# build RELEASE: its directory, unless there is one.
build() {
	local root=$dir/$1 begun=$SECONDS mirror
	[ ! -e "$root/built" ] || return 0
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'LABEL: Debian' | head -n 1)
	[ -n "$mirror" ] || die "apt knows no mirror of Debian: run apt-get update"
	echo "matrix: $1: debootstrap and packages into $root"
	mkdir -p "$dir"
	rm -rf --one-file-system "$root"
	{
		debootstrap --variant=minbase --include=ca-certificates "$1" "$root" "$mirror" &&
			cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" &&
			enter "$1" internal/test/packages.sh &&
			{ [ "$1" != sid ] || ln -s mysql "$root/usr/bin/mariadb"; } # the client
	} >"$root.log" 2>&1 || { tail -n 5 "$root.log"; die "no directory for $1: see $root.log"; }
	touch "$root/built"
	echo "matrix: $1: built in $((SECONDS - begun)) s"
}

# report ROW VERSION SUITE RESULT SECONDS: a line of the table.
report() {
	printf '%-14s %-8s %-55s %-5s %5d s\n' "$@" | tee -a "$table"
}

# row ROW: runs its suites; false if one failed.
row() {
	local release version suite begun=$SECONDS log n=0 failed=0
	release=$(release "$1")
	if ! (build "$release"); then
		report "$1" - "(no directory for $release)" FAIL $((SECONDS - begun))
		return 1
	fi
	version=$(version "$1")
	if [[ $version != "${1##*-}"* ]]; then
		report "$1" "$version" "(the row wants another name)" FAIL 0
		return 1
	fi
	while read -r suite; do
		log=$dir/$1.$((++n)).log begun=$SECONDS
		echo "matrix: $1: go test -count=1 -timeout 30m $suite"
		# shellcheck disable=SC2086
		if enter "$release" env CGO_ENABLED=0 go test -count=1 -timeout 30m $suite >"$log" 2>&1 </dev/null; then
			report "$1" "$version" "$suite" pass $((SECONDS - begun))
		else
			failed=1
			tail -n 60 "$log"
			echo "matrix: the rest is in $log; 'internal/test/matrix.sh enter $release go test -run NAME $suite' repeats a test"
			report "$1" "$version" "$suite" FAIL $((SECONDS - begun))
		fi
	done < <(suites "$1" | head -n "${suites:-3}")
	return $failed
}

# may_begin ROW...: the machine can have the servers of the rows.
may_begin() {
	[ "$(id -u)" -eq 0 ] || die "only root may make and enter such directories"
	command -v debootstrap >/dev/null || die "debootstrap is missing: run 'apt-get install debootstrap'"
	local one
	for one; do build "$one"; done
}

if [ "${1:-}" = enter ]; then
	shift
	may_begin "$1"
	enter "$@"
	exit
fi

read -ra rows <<<"${*:-$all}"
if [ "${rows[0]}" = turn ]; then
	read -ra rows <<<"$all"
	rows=("${rows[$((10#$(date +%j) % ${#rows[@]}))]}") suites=1
	command -v debootstrap >/dev/null || apt-get install -y -q --no-install-recommends debootstrap || true
	# CI's machine may not be allowed to mount, may have no mirror, or a newer release.
	if ! (may_begin "$(release "${rows[0]}")") || [[ $(version "${rows[0]}") != "${rows[0]##*-}"* ]]; then
		echo "matrix: the turn of ${rows[0]} was not run: this machine cannot have its server"
		exit
	fi
else
	may_begin
fi
for one in "${rows[@]}"; do release "$one" >/dev/null; done
go mod download
table=$(mktemp)
trap 'rm -f "$table"' EXIT
code=0 i=0
for one in "${rows[@]}"; do
	echo "matrix: row $((++i)) of ${#rows[@]}: $one, after $SECONDS s"
	row "$one" || code=1
done
echo "matrix: after $SECONDS s:"
cat "$table"
exit $code
