#!/usr/bin/env bash
# Installs the Debian packages that `make test` needs and does not find: as root by
# apt-get. Any other user gets one line with the command. WAYBILL_TEST_ON_MYSQL
# asks for MySQL in place of MariaDB, WAYBILL_TEST_NO_LANGUAGES for no PHP and Python.
set -euo pipefail

if ! command -v go >/dev/null; then
	echo "packages: go is missing: install Go 1.26 or later from https://go.dev/dl/ and put it on the PATH" >&2
	exit 1
fi

# need PACKAGES COMMAND...: the packages are missing unless the command succeeds.
missing=()
need() {
	"${@:2}" >/dev/null 2>&1 || read -ra missing <<<"${missing[*]} $1"
}

# program NAME [DIRECTORY]: an executable, also where internal/test/testserver looks.
program() { command -v "$1" || compgen -G "${2:-}/$1"; }
module() { php -r 'new ReflectionExtension($argv[1]);' "$1"; }

need make program make
need 'gcc libc6-dev' program "$(go env CC)" # for the race detector
need postgresql program postgres '/usr/lib/postgresql/*/bin'
need rabbitmq-server program rabbitmq-server /usr/lib/rabbitmq/bin
need chromium program chromium # the dashboard is tested in it
need pgbouncer program pgbouncer /usr/sbin
if [ -n "${WAYBILL_TEST_ON_MYSQL:-}" ]; then
	need mysql-server program mysqld /usr/sbin
else
	need mariadb-server program mariadbd /usr/sbin
fi
if [ -z "${WAYBILL_TEST_NO_LANGUAGES:-}" ]; then # examples/other-languages, examples/symfony
	need php-cli program php
	need php-pgsql module pdo_pgsql
	need php-mysql module pdo_mysql
	need 'php-amqp php-symfony-amqp-messenger php-symfony-doctrine-messenger php-symfony-serializer php-symfony-property-access php-symfony-event-dispatcher php-doctrine-dbal' \
		php -r 'require "examples/symfony/autoload.php"; new ReflectionExtension("amqp");'
	need python3-psycopg2 /usr/bin/python3 -c 'import psycopg2'
	need python3-pymysql /usr/bin/python3 -c 'import pymysql'
fi

if [ ${#missing[@]} -eq 0 ]; then
	echo "packages: none is missing"
	exit
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "packages: missing: run 'sudo apt-get install --no-install-recommends ${missing[*]}' (Debian, Ubuntu) and then this again" >&2
	exit 1
fi

# The services that packages bring must not start: tests start servers of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
echo "packages: 1 of 2: apt-get update"
apt-get update -q
echo "packages: 2 of 2: apt-get install ${missing[*]}"
apt-get install -y -q --no-install-recommends "${missing[@]}"
echo "packages: installed in $SECONDS s"
