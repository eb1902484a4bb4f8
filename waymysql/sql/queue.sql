-- Queues. held is 0 for a claimable row, 1 for one in flight (leased, or waiting for a retry), 2 for one set
-- aside behind a row of its key in flight. Rows are looked up, and locked, one by one by their ids, in
-- ascending order: for WHERE id IN the optimizer may read the whole table, and wait for other transactions'
-- rows, or deadlock with them. A claim waits for no row. MySQL refuses to lock a JSON_TABLE and needs the OF
-- that MariaDB does not know.

-- name: any
-- Whether a claim may find something, without waiting for a turn.
SELECT EXISTS (SELECT 1 FROM app.waybill_queue AS q FORCE INDEX (waybill_queue_due)
               WHERE  q.queue = ? AND q.held_until IS NULL AND q.held = 0)
OR     EXISTS (SELECT 1 FROM app.waybill_queue AS q FORCE INDEX (waybill_queue_due)
               WHERE  q.queue = ? AND q.held_until <= UTC_TIMESTAMP(6));

-- name: turn
-- Claims of a queue take turns, so that none sees a key free that another is just taking. A separate
-- statement: the next one sees the commit of the last claim.
SELECT g.bucket
FROM   app.waybill_outbox_gate AS g
WHERE  g.transport = -1 AND g.bucket = ?
FOR    UPDATE;

-- name: due
-- Rows whose lease has ended, or whose retry is due. Rows set aside come back after a while even if the row
-- before them was deleted by hand.
SELECT q.id, q.partition_key = ''
FROM   app.waybill_queue AS q FORCE INDEX (waybill_queue_due)
WHERE  q.queue = ? AND q.held_until <= UTC_TIMESTAMP(6)
ORDER  BY q.held_until
LIMIT  ?;

-- name: lock_due
-- Locks the rows that are still due, by their ids: a range of the other index would lock the row behind it.
SELECT q.id
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
WHERE  q.held_until <= UTC_TIMESTAMP(6)
FOR    UPDATE /*!80000 OF q */ SKIP LOCKED;

-- name: make_claimable
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held = 0, q.held_until = NULL;

-- name: read
-- The oldest claimable rows, each with a row of its key in flight and the oldest one set aside. It is one
-- statement: settling transactions make rows claimable meanwhile. Of an ORDER BY a.id alone MySQL does not
-- know that the index has it, and sorts all rows set aside for each claimable one.
SELECT w.id, w.partition_key,
       IF(w.partition_key = '', NULL,
          (SELECT h.id FROM app.waybill_queue AS h FORCE INDEX (waybill_queue_held)
           WHERE  h.queue = w.queue AND h.partition_key = w.partition_key AND h.held = 1
           LIMIT  1)),
       IF(w.partition_key = '', NULL,
          (SELECT a.id FROM app.waybill_queue AS a FORCE INDEX (waybill_queue_held)
           WHERE  a.queue = w.queue AND a.partition_key = w.partition_key AND a.held = 2
           ORDER  BY a.queue, a.partition_key, a.held, a.id
           LIMIT  1))
FROM  (SELECT q.id, q.queue, q.partition_key
       FROM   app.waybill_queue AS q FORCE INDEX (waybill_queue_due)
       WHERE  q.queue = ? AND q.held_until IS NULL AND q.held = 0
       ORDER  BY q.id
       LIMIT  ?) AS w;

-- name: behind
-- The rows of a key that are not in flight, behind an id: the oldest ones of both kinds, since a settling
-- transaction may have made some claimable after the last statement.
(SELECT q.id, q.held
 FROM   app.waybill_queue AS q FORCE INDEX (waybill_queue_held)
 WHERE  q.queue = ? AND q.partition_key = ? AND q.held = 0 AND q.id > ?
 ORDER  BY q.id
 LIMIT  ?)
UNION  ALL
(SELECT q.id, q.held
 FROM   app.waybill_queue AS q FORCE INDEX (waybill_queue_held)
 WHERE  q.queue = ? AND q.partition_key = ? AND q.held = 2 AND q.id > ?
 ORDER  BY q.id
 LIMIT  ?);

-- name: lock
-- Rows without a key that are due count as claimable.
SELECT q.id, IF(q.partition_key = '' AND q.held_until <= UTC_TIMESTAMP(6), 0, q.held)
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
FOR    UPDATE /*!80000 OF q */ SKIP LOCKED;

-- name: lock_free
-- Locks rows for lease, except those that are in flight and not due, or locked by another transaction.
SELECT JSON_ARRAYAGG(q.id) INTO @waybill_rows
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
WHERE  (q.held <> 1 OR q.held_until <= UTC_TIMESTAMP(6))
FOR    UPDATE /*!80000 OF q */ SKIP LOCKED;

-- name: lease
-- redelivered is set first: the server evaluates from left to right.
UPDATE JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.redelivered = q.holder IS NOT NULL, q.held = 1,
       q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, q.holder = UNHEX(?), q.lease = q.lease + 1;

-- name: leased
SELECT q.id, q.message_id, q.message_name, q.partition_key, q.headers, q.body,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', q.created_at), q.failures, q.lease, q.redelivered
FROM   JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id;

-- name: set_aside
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held = 2, q.held_until = UTC_TIMESTAMP(6) + INTERVAL 10 MINUTE;

-- name: lock_leased
-- Locks rows whose lease is the last of a holder, for the statements below: pairs of id and lease.
SELECT JSON_ARRAYAGG(q.id) INTO @waybill_rows
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', lease BIGINT PATH '$[1]')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
WHERE  q.holder = UNHEX(?) AND q.lease = k.lease
FOR    UPDATE /*!80000 OF q */;

-- name: locked
SELECT q.id, q.lease, q.partition_key
FROM   JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id;

-- name: ack
DELETE q
FROM   JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id;

-- name: next
-- Of each key, in hexadecimal, the oldest row set aside, and a row in flight. It runs after the statement that
-- deletes, because it must see the rows set aside behind these rows until they were locked.
SELECT n.next, n.head
FROM  (SELECT (SELECT a.id FROM app.waybill_queue AS a FORCE INDEX (waybill_queue_held)
               WHERE  a.queue = ? AND a.partition_key = UNHEX(k.hex) AND a.held = 2
               ORDER  BY a.queue, a.partition_key, a.held, a.id
               LIMIT  1) AS next,
              (SELECT h.id FROM app.waybill_queue AS h FORCE INDEX (waybill_queue_held)
               WHERE  h.queue = ? AND h.partition_key = UNHEX(k.hex) AND h.held = 1
               LIMIT  1) AS head
       FROM   JSON_TABLE(?, '$[*]' COLUMNS (hex VARCHAR(510) PATH '$')) AS k) AS n
WHERE  n.next IS NOT NULL;

-- name: release
UPDATE JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held = 0, q.held_until = NULL, q.holder = NULL;

-- name: retry
UPDATE JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.failures = q.failures + 1, q.headers = ?, q.holder = NULL, q.held = 1,
       q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND;

-- name: renew
UPDATE JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held = 1, q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND;
