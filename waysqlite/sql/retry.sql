-- Retry queues. The other statements of their table are those of queue.sql, for waybill_retry. The statements
-- of a move run in one transaction, which is the only one that writes.

-- name: contains
-- Whether the queue has the message of an id, or one of its key, for each pair of them in the array ?2.
SELECT EXISTS (SELECT 1 FROM waybill_retry AS q WHERE q.queue = ?1 AND q.message_id = unhex(m.value ->> 0))
       OR m.value ->> 1 <> '' AND EXISTS (
       SELECT 1 FROM waybill_retry AS q
       WHERE  q.queue = ?1 AND q.partition_key = m.value ->> 1 AND q.partition_key <> '')
FROM   json_each(?2) AS m
ORDER  BY m.key;

-- name: add
-- Inserts a message, unless the queue has it already.
INSERT INTO waybill_retry (
       queue, message_id, message_name, partition_key, headers, body, created_at, failures, held, held_until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 OR ?10 > 0,
        CASE WHEN ?9 THEN 9223372036854775807
             WHEN ?10 > 0 THEN CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?10
             ELSE 0 END)
ON     CONFLICT (queue, message_id) DO NOTHING
RETURNING id;

-- name: move
-- Settles a delivery, unless its row has been leased again.
UPDATE waybill_retry
SET    failures = failures + ?4, headers = ?5, crashes = 0, holder = NULL, held = ?6 OR ?7 > 0,
       held_until = CASE WHEN ?6 THEN 9223372036854775807
                         WHEN ?7 > 0 THEN CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?7
                         ELSE 0 END
WHERE  id = ?1
AND    holder = ?2
AND    lease = ?3
RETURNING id;

-- name: record_attempt
-- Records the attempt at a message that was added or moved. The numbers continue after a replay. The attempt of
-- a new row is recorded once, also if the message was added before and the answer was lost.
INSERT INTO waybill_failed_attempt (
       transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
SELECT q.queue, q.message_id,
       max(q.failures, 1 + (SELECT coalesce(max(t.attempt), 0) FROM waybill_failed_attempt AS t
                            WHERE t.transport = q.queue AND t.message_id = q.message_id)),
       ?2, ?3, ?4, ?5, ?6, ?7, ?8
FROM   waybill_retry AS q
WHERE  q.id = ?1
AND   (q.lease > 0
       OR NOT EXISTS (SELECT 1 FROM waybill_failed_attempt AS t
                      WHERE t.transport = q.queue AND t.message_id = q.message_id AND t.at = ?2));

-- name: bury
-- Copies a message that was added or moved to the dead letters, with its last attempt. An entry of the same
-- message is changed.
INSERT INTO waybill_failed AS f (
       source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body,
       created_at, failures, first_failed_at, failed_at, last_error, handler, error_type, fingerprint)
SELECT 'worker', q.queue, ?2, 'failed', q.message_id, q.message_name, q.partition_key, q.headers, q.body,
       q.created_at, max(q.failures, coalesce(a.attempt, 0)),
       coalesce((SELECT min(t.at) FROM waybill_failed_attempt AS t
                 WHERE t.transport = q.queue AND t.message_id = q.message_id),
                CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
       CAST(unixepoch('subsec') * 1000000 AS INTEGER), coalesce(a.error, ''), coalesce(a.handler, ''),
       coalesce(a.error_type, ''), coalesce(a.fingerprint, '')
FROM   waybill_retry AS q
LEFT   JOIN waybill_failed_attempt AS a
       ON a.transport = q.queue AND a.message_id = q.message_id
       AND a.attempt = (SELECT max(t.attempt) FROM waybill_failed_attempt AS t
                        WHERE t.transport = q.queue AND t.message_id = q.message_id)
WHERE  q.id = ?1
ON     CONFLICT (transport, message_id) WHERE source = 'worker' DO UPDATE
SET    state = 'failed', failure_transport = excluded.failure_transport, message_name = excluded.message_name,
       partition_key = excluded.partition_key, headers = excluded.headers, body = excluded.body,
       failures = max(f.failures, excluded.failures), failed_at = excluded.failed_at,
       last_error = excluded.last_error, handler = excluded.handler, error_type = excluded.error_type,
       fingerprint = excluded.fingerprint, removed_at = NULL;

-- name: parked
-- The parked row of each key.
SELECT min(id), partition_key FROM waybill_retry
WHERE  queue = ?1 AND (?2 = '' OR partition_key = ?2) AND held_until = 9223372036854775807 AND holder IS NULL
GROUP  BY partition_key;

-- name: delete_buried
DELETE FROM waybill_retry WHERE id = ?;

-- name: forget_attempts
-- Before an acknowledgement of the same lease: forgets the failed attempts at its message.
DELETE FROM waybill_failed_attempt
WHERE (transport, message_id) = (
       SELECT queue, message_id FROM waybill_retry WHERE id = ?1 AND holder = ?2 AND lease = ?3);

-- name: forget_entry
-- Before an acknowledgement of the same lease: ends the dead letter of its message.
DELETE FROM waybill_failed
WHERE  source = 'worker'
AND   (transport, message_id) = (
       SELECT queue, message_id FROM waybill_retry WHERE id = ?1 AND holder = ?2 AND lease = ?3);

-- name: begin
-- A start counts as a crash when the next lease begins its handlers too, without a settlement between them.
UPDATE waybill_retry SET crashes = crashes + (redelivered AND begun = lease - 1), begun = lease
WHERE  id = ?1 AND holder = ?2 AND lease = ?3
RETURNING crashes;

-- name: list
SELECT q.id, q.queue, q.message_name, q.partition_key, q.message_id, q.created_at, q.failures, q.crashes,
       iif(q.held_until BETWEEN 1 AND 9223372036854775806 AND q.holder IS NULL, q.held_until, NULL),
       q.held_until = 9223372036854775807 AND q.holder IS NULL, q.held_until > ?5 AND q.holder IS NOT NULL,
       length(q.body),
       coalesce((SELECT t.error FROM waybill_failed_attempt AS t
                 WHERE  t.transport = q.queue AND t.message_id = q.message_id
                 ORDER  BY t.attempt DESC
                 LIMIT  1), '')
FROM   waybill_retry AS q
WHERE  (?1 = '' OR q.queue = ?1)
AND    (?2 = '' OR q.partition_key = ?2)
AND    q.id > ?3
ORDER  BY q.id
LIMIT  ?4;

-- name: attempts
SELECT attempt, at, worker, handler, error_type, error, stack, fingerprint
FROM   waybill_failed_attempt
WHERE  transport = ?1 AND message_id = ?2
ORDER  BY attempt;
