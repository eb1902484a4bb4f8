-- Statements that name no table of waybill.

-- name: version
-- With the largest packet that the server reads.
SELECT VERSION(), @@max_allowed_packet;

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
SET @waybill_ddl_wait = @@SESSION.lock_wait_timeout,
    @waybill_row_wait = @@SESSION.innodb_lock_wait_timeout,
    @@SESSION.lock_wait_timeout = 1,
    @@SESSION.innodb_lock_wait_timeout = 1;

-- name: usual_waits
-- The session's own, of which the server's may differ.
SET @@SESSION.lock_wait_timeout = @waybill_ddl_wait,
    @@SESSION.innodb_lock_wait_timeout = @waybill_row_wait;

-- name: one_argument
DO ?;

-- name: session
SELECT COALESCE(DATABASE(), ''), @@SESSION.autocommit, @@SESSION.completion_type,
       @@SESSION.character_set_client, @@SESSION.character_set_results;

-- name: set
SET ?;

-- name: borrow_setting
-- A setting of a borrowed session, whose own value a user variable keeps.
@waybill_? = @@SESSION.?, @@SESSION.? = ?

-- name: return_setting
@@SESSION.? = @waybill_?
