-- Dead letters: messages that were skipped by a relay, or failed in a worker.

-- name: chosen
-- The condition of the dead letters that list, groups and hours are about, where they have a ? for WHERE.
CASE WHEN ? = '' THEN state <> 'removed' ELSE state = ? END
AND   (? = '' OR transport = ?) AND (? = '' OR partition_key = ?) AND (? = '' OR message_name = ?)
AND   (? = '' OR FIND_IN_SET(id, ?)) AND (? = '' OR source = ?) AND (? = '' OR failure_transport = ?)
AND   (? = '' OR handler = ?) AND (? = '' OR fingerprint = ?)
AND   (? = '' OR LOCATE(LOWER(?), LOWER(last_error)) > 0)
AND    failed_at >= ? AND failed_at < ?;

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', failed_at), last_error,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', removed_at), LENGTH(body), source, failure_transport,
       handler, error_type, fingerprint
FROM   app.waybill_failed
WHERE  ?
AND    id > ? AND id <= ?
ORDER  BY id
LIMIT  ?;

-- name: groups
-- By name and handler.
SELECT g.fingerprint, g.message_name, g.handler, g.messages,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', g.first_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', g.last_at),
       g.example, e.last_error
FROM  (SELECT fingerprint, CASE WHEN fingerprint = '' THEN SHA2(last_error, 256) ELSE '' END AS kind,
              message_name, handler, COUNT(*) AS messages,
              MIN(COALESCE(first_failed_at, failed_at)) AS first_at, MAX(failed_at) AS last_at, MAX(id) AS example
       FROM   app.waybill_failed
       WHERE  ?
       GROUP  BY fingerprint, kind, message_name, handler) AS g
JOIN   app.waybill_failed AS e ON e.id = g.example;

-- name: hours
-- By the hours before a time.
SELECT fingerprint, MIN(CASE WHEN fingerprint = '' THEN last_error ELSE '' END),
       TIMESTAMPDIFF(HOUR, failed_at, ?) AS ago, COUNT(*)
FROM   app.waybill_failed
WHERE  ?
GROUP  BY fingerprint, CASE WHEN fingerprint = '' THEN SHA2(last_error, 256) ELSE '' END, ago;

-- name: failed_again
-- How many of the messages, pairs of a transport and an id in hexadecimal, have failed.
SELECT COUNT(*)
FROM   JSON_TABLE(?, '$[*]' COLUMNS (transport VARCHAR(380) PATH '$[0]', id CHAR(32) PATH '$[1]')) AS k
WHERE  EXISTS (SELECT 1 FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_of_workers)
               WHERE  f.transport = UNHEX(k.transport) AND f.worker_message_id = UNHEX(k.id)
               AND    f.state = 'failed')
OR    (UNHEX(k.transport), UNHEX(k.id))
       IN (SELECT s.transport, s.message_id FROM app.waybill_failed AS s
           WHERE  s.source = 'outbox' AND s.state = 'skipped')
OR     EXISTS (SELECT 1 FROM app.waybill_retry AS q FORCE INDEX (waybill_retry_ids)
               WHERE q.queue = UNHEX(k.transport) AND q.message_id = UNHEX(k.id) AND q.failures > 0);

-- name: audit
INSERT INTO app.waybill_audit (actor, action, filter, messages) VALUES (?, ?, ?, ?);

-- name: stop_workers
UPDATE app.waybill_workers SET stop_requested_at = UTC_TIMESTAMP(6)
WHERE  id = UNHEX(REPLACE(?, '-', '')) AND kind = 'worker'
AND    seen_at > UTC_TIMESTAMP(6) - INTERVAL 60 SECOND;

-- name: pause
INSERT IGNORE INTO app.waybill_paused (transport, actor, reason) VALUES (?, ?, ?);

-- name: resume
DELETE FROM app.waybill_paused WHERE transport = ?;

-- name: audit_list
SELECT id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at), actor, action, filter, messages
FROM   app.waybill_audit
WHERE (? = 0 OR id < ?)
ORDER  BY id DESC
LIMIT  ?;

-- name: edit
UPDATE app.waybill_failed
SET    body = ?
WHERE  id = ? AND body = ? AND state IN ('skipped', 'failed');

-- name: add_as_new
-- Adds a worker's message under another id to its retry queue, where all its handlers run, with a header of
-- its old id and without that of its handlers.
INSERT INTO app.waybill_retry (queue, message_id, message_name, partition_key, headers, body)
SELECT f.transport, UNHEX(REPLACE(?, '-', '')), f.message_name, f.partition_key,
       JSON_SET(JSON_REMOVE(f.headers, CONCAT('$."', ?, '"')), CONCAT('$."', ?, '"'),
                INSERT(INSERT(INSERT(INSERT(LOWER(HEX(f.message_id)), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
                       24, 0, '-')), f.body
FROM   app.waybill_failed AS f FORCE INDEX (PRIMARY)
WHERE  f.id = ? AND f.source = 'worker' AND f.state = 'failed'
FOR    UPDATE;

-- name: release_parked
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_retry AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held = 0
WHERE  q.held = 1 AND q.held_until IS NULL;

-- name: content
SELECT headers, body FROM app.waybill_failed WHERE id = ?;

-- name: skipped
-- A skipped message that is dispatched again, and deleted here, in one transaction.
SELECT transport, message_id, message_name, partition_key, headers, body,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)
FROM   app.waybill_failed
WHERE  id = ? AND state = 'skipped'
FOR    UPDATE;

-- name: delete_skipped
DELETE FROM app.waybill_failed WHERE id = ?;

-- name: remove
-- The other columns stay, as a record of the missing message.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
SET    f.state = 'removed', f.body = '', f.headers = '{}', f.removed_at = UTC_TIMESTAMP(6)
WHERE  f.state IN ('skipped', 'failed');

-- name: replayable
-- Locks workers' messages that are not in their retry queues. An entry whose row there was deleted by hand is
-- one of them.
SELECT f.id
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
WHERE  f.source = 'worker'
AND   (f.state = 'failed'
       OR f.state = 'retrying'
       AND NOT EXISTS (SELECT 1 FROM app.waybill_retry AS q
                       WHERE q.queue = f.transport AND q.message_id = f.message_id))
FOR    UPDATE /*!80000 OF f */;

-- name: retrying
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
SET    f.state = 'retrying';

-- name: replay
-- Their failures begin anew. A message that is in its retry queue already stays as it is there.
INSERT IGNORE INTO app.waybill_retry
       (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT f.transport, f.message_id, f.message_name, f.partition_key, f.headers, f.body, f.created_at
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
ORDER  BY f.id;
