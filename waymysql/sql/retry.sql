-- Retry queues. The other statements of their table are those of queue.sql, for waybill_retry.

-- name: contains
-- Whether the queue has the message of an id, or one of its key, for pairs in hexadecimal.
SELECT EXISTS (SELECT 1 FROM app.waybill_retry AS q FORCE INDEX (waybill_retry_ids)
               WHERE  q.queue = ? AND q.message_id = UNHEX(k.id))
OR     k.hex <> ''
       AND EXISTS (SELECT 1 FROM app.waybill_retry AS q FORCE INDEX (waybill_queue_held)
                   WHERE q.queue = ? AND q.partition_key = UNHEX(k.hex))
FROM   JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, id CHAR(32) PATH '$[0]',
                                   hex VARCHAR(510) PATH '$[1]')) AS k
ORDER  BY k.n;

-- name: known
-- Of messages, each with the time of its attempt: whether the queue has it, its last attempt, and whether it
-- has one of that time.
SELECT k.n - 1,
       EXISTS (SELECT 1 FROM app.waybill_retry AS q FORCE INDEX (waybill_retry_ids)
               WHERE  q.queue = ? AND q.message_id = UNHEX(k.id)),
       COALESCE((SELECT MAX(a.attempt) FROM app.waybill_failed_attempt AS a
                 WHERE  a.transport = ? AND a.message_id = UNHEX(k.id)), 0),
       EXISTS (SELECT 1 FROM app.waybill_failed_attempt AS a
               WHERE  a.transport = ? AND a.message_id = UNHEX(k.id) AND a.at = k.at)
FROM   JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, id CHAR(32) PATH '$[0]',
                                   at DATETIME(6) PATH '$[1]')) AS k;

-- name: add
-- The row of VALUES is repeated. A replay may have added a message meanwhile.
INSERT INTO app.waybill_retry
       (queue, message_id, message_name, partition_key, headers, body, created_at, failures, held, held_until)
VALUES (?, ?, ?, ?, CONVERT(? USING utf8mb4), ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
ON     DUPLICATE KEY UPDATE queue = VALUES(queue);

-- name: add_attempts
-- The row of VALUES is repeated.
INSERT INTO app.waybill_failed_attempt
       (transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move
UPDATE app.waybill_retry
SET    failures = ?, headers = ?, crashes = 0, holder = NULL, held = ?,
       held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE  id = ?;

-- name: remove
DELETE FROM app.waybill_retry WHERE id = ?;

-- name: attempt
-- Numbers continue after a replay. An attempt is recorded once, also if its message was added before and the
-- answer was lost.
INSERT INTO app.waybill_failed_attempt
       (transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
SELECT ?, UNHEX(?), GREATEST(?, 1 + COALESCE(MAX(a.attempt), 0)), ?, ?, ?, ?, ?, ?, ?
FROM   app.waybill_failed_attempt AS a
WHERE  a.transport = ? AND a.message_id = UNHEX(?)
HAVING NOT COALESCE(MAX(a.at = ?), FALSE);

-- name: bury
-- Makes a dead letter, with the last attempt at the message. An entry of the same message is changed.
INSERT INTO app.waybill_failed
       (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body,
        created_at, failures, first_failed_at, last_error, handler, error_type, fingerprint)
SELECT 'worker', m.transport, ?, 'failed', m.message_id, ?, ?, ?, ?,
       ?, GREATEST(?, COALESCE(a.attempt, 0)), COALESCE(m.first_at, UTC_TIMESTAMP(6)), COALESCE(a.error, ''),
       COALESCE(a.handler, ''), COALESCE(a.error_type, ''), COALESCE(a.fingerprint, '')
FROM  (SELECT ? AS transport, UNHEX(?) AS message_id, MAX(t.attempt) AS attempt, MIN(t.at) AS first_at
       FROM   app.waybill_failed_attempt AS t
       WHERE  t.transport = ? AND t.message_id = UNHEX(?)) AS m
LEFT   JOIN app.waybill_failed_attempt AS a
ON     a.transport = m.transport AND a.message_id = m.message_id AND a.attempt = m.attempt
ON     DUPLICATE KEY UPDATE state = 'failed', failure_transport = VALUES(failure_transport),
       message_name = VALUES(message_name), partition_key = VALUES(partition_key), headers = VALUES(headers),
       body = VALUES(body), failures = GREATEST(app.waybill_failed.failures, VALUES(failures)),
       failed_at = UTC_TIMESTAMP(6), last_error = VALUES(last_error), handler = VALUES(handler),
       error_type = VALUES(error_type), fingerprint = VALUES(fingerprint), removed_at = NULL;

-- name: ack
-- Deletes messages, with their attempts and dead letters.
DELETE q, a, f
FROM   JSON_TABLE(@waybill_rows, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_retry AS q FORCE INDEX (PRIMARY) ON q.id = k.id
LEFT   JOIN app.waybill_failed_attempt AS a FORCE INDEX (PRIMARY)
ON     a.transport = q.queue AND a.message_id = q.message_id
LEFT   JOIN app.waybill_failed AS f FORCE INDEX (waybill_failed_of_workers)
ON     f.transport = q.queue AND f.worker_message_id = q.message_id;

-- name: begin
-- A start counts as a crash when the next lease begins its handlers too, without a settlement between them.
UPDATE app.waybill_retry
SET    crashes = crashes + (redelivered AND begun = lease - 1), begun = lease
WHERE  id = ? AND lease = ? AND holder = UNHEX(?);

-- name: crashes
SELECT crashes FROM app.waybill_retry WHERE id = ? AND lease = ? AND holder = UNHEX(?);

-- name: parked
SELECT q.id
FROM   app.waybill_retry AS q FORCE INDEX (waybill_queue_due)
WHERE  q.queue = ? AND (? = '' OR q.partition_key = ?) AND q.held = 1 AND q.held_until IS NULL;

-- name: parked_heads
SELECT MIN(q.id)
FROM   app.waybill_retry AS q FORCE INDEX (waybill_queue_due)
WHERE  q.queue = ? AND (? = '' OR q.partition_key = ?) AND q.held = 1 AND q.held_until IS NULL
GROUP  BY q.partition_key;

-- name: parked_head
SELECT message_id, message_name, partition_key, headers, body,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), failures
FROM   app.waybill_retry
WHERE  id = ? AND held = 1 AND held_until IS NULL
FOR    UPDATE;

-- name: list
SELECT q.id, q.queue, q.message_name, q.partition_key, q.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', q.created_at), q.failures, q.crashes,
       CASE WHEN q.held = 1 AND q.holder IS NULL
            THEN TIMESTAMPDIFF(MICROSECOND, '1970-01-01', q.held_until) END,
       q.held = 1 AND q.held_until IS NULL,
       q.held = 1 AND q.holder IS NOT NULL AND q.held_until > UTC_TIMESTAMP(6), LENGTH(q.body),
       COALESCE((SELECT a.error FROM app.waybill_failed_attempt AS a
                 WHERE  a.transport = q.queue AND a.message_id = q.message_id
                 ORDER  BY a.attempt DESC
                 LIMIT  1), '')
FROM   app.waybill_retry AS q
WHERE (? = '' OR q.queue = ?) AND (? = '' OR q.partition_key = ?) AND q.id > ?
ORDER  BY q.id
LIMIT  ?;

-- name: attempts
SELECT attempt, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at), worker, handler, error_type, error, stack,
       fingerprint
FROM   app.waybill_failed_attempt
WHERE  transport = ? AND message_id = UNHEX(?)
ORDER  BY attempt;

-- name: worker_stats
SELECT n.transport, SUM(n.retrying), SUM(n.parked), SUM(n.failed)
FROM  (SELECT q.queue AS transport, COUNT(*) AS retrying,
              COALESCE(SUM(q.held = 1 AND q.held_until IS NULL), 0) AS parked, 0 AS failed
       FROM   app.waybill_retry AS q
       GROUP  BY q.queue
       UNION  ALL
       SELECT f.transport, 0, 0, COUNT(*) FROM app.waybill_failed AS f
       WHERE  f.source = 'worker' AND f.state = 'failed'
       GROUP  BY f.transport) AS n
GROUP  BY n.transport
ORDER  BY n.transport;
