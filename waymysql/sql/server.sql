-- Statements that name no table of waybill.

-- name: version
SELECT VERSION();

-- name: binary_log
SHOW MASTER STATUS;

-- name: binary_log_since_8_2
-- The same on MySQL.
SHOW BINARY LOG STATUS;

-- name: lock_wait
SELECT @@SESSION.innodb_lock_wait_timeout;

-- name: set_lock_wait
SET SESSION innodb_lock_wait_timeout = ?;

-- name: short_waits
SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1;

-- name: usual_waits
SET SESSION lock_wait_timeout = DEFAULT, innodb_lock_wait_timeout = DEFAULT;
