#!/bin/sh
# Replaces the build of running workers, one process after the other:
#
#   rolling-restart.sh NEW INSTALLED NAME...
#
# NEW is the new build. INSTALLED is the file that a supervisor (systemd, supervisord) runs
# under each NAME ("--name"), and starts again when it ends. The commands read waybill.yaml as
# the workers do. Exit code 7: the new build cannot read messages that are stored, and nothing
# was changed; preflight has named them.
#
# Processes that dispatch come after this, so that no old worker gets a message of the new
# build.
set -eu
new=$1 installed=$2
shift 2

"$new" preflight

# A running process keeps its file: the new one takes the name in one step.
cp "$new" "$installed.new"
mv "$installed.new" "$installed"

listed() { "$installed" workers list --json | grep -q "\"name\": *\"$1\""; }

for name; do
	# It takes no more messages and finishes those in flight. 90s is longer than the drain time.
	"$installed" workers stop "$name" --wait --timeout 90s --yes
	tries=60
	until listed "$name"; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || { echo "rolling-restart: $name was stopped and has not come back" >&2; exit 1; }
		sleep 1
	done
	echo "rolling-restart: $name runs the new build"
done
