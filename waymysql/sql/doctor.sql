-- name: findings
-- One row for each finding: its code and the detail of its sentence. ? is the size of the pool, twice.
SELECT 'not-durable', CONCAT('innodb_flush_log_at_trx_commit is ', @@innodb_flush_log_at_trx_commit)
FROM   DUAL
WHERE  @@innodb_flush_log_at_trx_commit NOT IN (1, 3)
UNION  ALL
SELECT 'binlog-not-synced', CONCAT('sync_binlog is ', @@GLOBAL.sync_binlog)
FROM   DUAL
WHERE  @@GLOBAL.log_bin = 1 AND @@GLOBAL.sync_binlog <> 1
UNION  ALL
SELECT 'few-connections',
       CONCAT('max_connections is ', @@GLOBAL.max_connections, ', and one process uses up to ', ?)
FROM   DUAL
WHERE  @@GLOBAL.max_connections < ?;

-- name: missing_indexes
-- ? are the prefix of the tables, the database and the prefix again. Indexes are
-- compared by their columns: their names may have been changed.
SELECT 'missing-index', CONCAT(?, e.t, ' (', e.c, ')')
FROM  (SELECT 'outbox' AS t, 'transport, bucket, id' AS c, 1 AS u
       UNION ALL SELECT 'outbox_unkeyed', 'transport, held, id', 1
       UNION ALL SELECT 'outbox_blocked', 'transport, route, partition_key, row_id', 1
       UNION ALL SELECT 'outbox_blocked', 'transport, bucket, partition_key', 0
       UNION ALL SELECT 'outbox_blocked', 'transport, state, next_attempt_at', 0
       UNION ALL SELECT 'delayed', 'id', 1
       UNION ALL SELECT 'delayed', 'refused, due_at, id', 0
       UNION ALL SELECT 'failed', 'id', 1
       UNION ALL SELECT 'failed', 'transport, worker_message_id', 1
       UNION ALL SELECT 'failed', 'partition_key', 0
       UNION ALL SELECT 'failed', 'fingerprint', 0
       UNION ALL SELECT 'inbox', 'handler, dedup_key', 1
       UNION ALL SELECT 'inbox', 'processed_at', 0
       UNION ALL SELECT 'inbox', 'message_id', 0
       UNION ALL SELECT 'unique', 'dedup_key', 1
       UNION ALL SELECT 'unique', 'expires_at', 0
       UNION ALL SELECT 'schedule', 'name', 1
       UNION ALL SELECT 'history', 'transport, message_name, handler, minute', 1
       UNION ALL SELECT 'history', 'minute', 0
       UNION ALL SELECT 'queue', 'id', 1
       UNION ALL SELECT 'queue', 'queue, held_until, held, id', 0
       UNION ALL SELECT 'queue', 'queue, partition_key, held, id', 0
       UNION ALL SELECT 'retry', 'id', 1
       UNION ALL SELECT 'retry', 'queue, held_until, held, id', 0
       UNION ALL SELECT 'retry', 'queue, partition_key, held, id', 0
       UNION ALL SELECT 'retry', 'queue, message_id', 1) AS e
LEFT   JOIN
      (SELECT table_name AS t, MIN(1 - non_unique) AS u,
              GROUP_CONCAT(column_name ORDER BY seq_in_index SEPARATOR ', ') AS c
       FROM   information_schema.statistics
       WHERE  table_schema = ?
       GROUP  BY table_name, index_name) AS i
ON     i.t = CONCAT(?, e.t) AND i.c = e.c AND i.u >= e.u
WHERE  i.t IS NULL;

-- name: old_transactions
-- Needs the privilege PROCESS. Not the statement of a transaction, which may have secrets and
-- bytes of any kind. InnoDB gives the times of its server's zone.
SELECT 'old-transaction', CONCAT('session ', trx_mysql_thread_id, ' has had a transaction open for ',
       TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), ' s')
FROM   information_schema.innodb_trx
WHERE  trx_mysql_thread_id <> CONNECTION_ID()
AND    TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) >= ?;

-- name: clock
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
