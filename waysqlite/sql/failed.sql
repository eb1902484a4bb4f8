-- Dead letters: messages that were skipped by a relay, or failed in a worker.

-- name: list
-- Without bodies. The list ?5 of numbers is null or empty for all.
SELECT id, state, transport, message_name, partition_key, message_id, created_at,
       failures, first_failed_at, failed_at, last_error, removed_at, length(body), source,
       failure_transport, handler, error_type, fingerprint
FROM   waybill_failed
WHERE  iif(?1 = '', state <> 'removed', state = ?1)
AND    (?2 = '' OR transport = ?2) AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR message_name = ?4)
AND    (?5 IN ('null', '[]') OR id IN (SELECT value FROM json_each(?5)))
AND    (?6 = '' OR source = ?6) AND (?7 = '' OR failure_transport = ?7) AND (?8 = '' OR handler = ?8)
AND    (?9 = '' OR fingerprint = ?9) AND (?10 = '' OR instr(lower(last_error), lower(?10)) > 0)
AND    failed_at >= ?11 AND failed_at < ?12
AND    id > ?13 AND id <= ?14
ORDER  BY id LIMIT ?15;

-- name: groups
SELECT g.*, (SELECT e.last_error FROM waybill_failed AS e WHERE e.id = g.example)
FROM  (SELECT fingerprint, count(*) AS messages, min(coalesce(first_failed_at, failed_at)), max(failed_at),
              json_group_array(DISTINCT message_name),
              json_group_array(DISTINCT handler) FILTER (WHERE handler <> ''),
              max(id) AS example
       FROM   waybill_failed
       WHERE  iif(?1 = '', state <> 'removed', state = ?1)
       AND    (?2 = '' OR transport = ?2) AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR message_name = ?4)
       AND    (?5 IN ('null', '[]') OR id IN (SELECT value FROM json_each(?5)))
       AND    (?6 = '' OR source = ?6) AND (?7 = '' OR failure_transport = ?7) AND (?8 = '' OR handler = ?8)
       AND    (?9 = '' OR fingerprint = ?9) AND (?10 = '' OR instr(lower(last_error), lower(?10)) > 0)
       AND    failed_at >= ?11 AND failed_at < ?12
       GROUP  BY fingerprint, iif(fingerprint = '', last_error, '')) AS g
ORDER  BY g.messages DESC, g.example;

-- name: hours
-- By the hours before ?13.
SELECT fingerprint, iif(fingerprint = '', last_error, ''), (?13 - failed_at) / 3600000000, count(*)
FROM   waybill_failed
WHERE  iif(?1 = '', state <> 'removed', state = ?1)
AND    (?2 = '' OR transport = ?2) AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR message_name = ?4)
AND    (?5 IN ('null', '[]') OR id IN (SELECT value FROM json_each(?5)))
AND    (?6 = '' OR source = ?6) AND (?7 = '' OR failure_transport = ?7) AND (?8 = '' OR handler = ?8)
AND    (?9 = '' OR fingerprint = ?9) AND (?10 = '' OR instr(lower(last_error), lower(?10)) > 0)
AND    failed_at >= ?11 AND failed_at < ?12
GROUP  BY 1, 2, 3;

-- name: failed_again
-- How many of the messages, pairs of a transport and an id in the array ?1, have failed. Those of relays have no
-- index: the list of them is made once.
SELECT count(*) FROM (SELECT value ->> 0 AS transport, unhex(value ->> 1) AS message_id FROM json_each(?1)) AS m
WHERE  EXISTS (SELECT 1 FROM waybill_failed AS f
               WHERE f.transport = m.transport AND f.message_id = m.message_id
               AND   f.source = 'worker' AND f.state = 'failed')
OR    (m.transport, m.message_id)
       IN (SELECT s.transport, s.message_id FROM waybill_failed AS s
           WHERE s.source = 'outbox' AND s.state = 'skipped')
OR     EXISTS (SELECT 1 FROM waybill_retry AS q
               WHERE q.queue = m.transport AND q.message_id = m.message_id AND q.failures > 0);

-- name: audit
INSERT INTO waybill_audit (at, actor, action, filter, messages)
VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), ?, ?, ?, ?);

-- name: stop_workers
UPDATE waybill_workers SET stop_requested_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
WHERE  id = ? AND seen_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000;

-- name: pause
INSERT INTO waybill_paused (transport, since, actor, reason)
VALUES (?, CAST(unixepoch('subsec') * 1000000 AS INTEGER), ?, ?)
ON CONFLICT (transport) DO NOTHING;

-- name: resume
DELETE FROM waybill_paused WHERE transport = ?;

-- name: audit_list
SELECT id, at, actor, action, filter, messages FROM waybill_audit
WHERE  (?1 = 0 OR id < ?1) ORDER BY id DESC LIMIT ?2;

-- name: edit
-- Another program may have stored a body as TEXT, which equals no BLOB of the same bytes.
UPDATE waybill_failed SET body = ?1
WHERE  id = ?2 AND CAST(body AS BLOB) = ?3 AND state IN ('skipped', 'failed');

-- name: add_as_new
-- Adds a worker's message under the id ?1 to its retry queue, where all its handlers run: ?2 is the header of
-- these, ?3 that of the old id.
INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, headers, body)
SELECT transport, unhex(?1, '-'), message_name, partition_key,
       json_set(json_remove(headers, '$."' || ?2 || '"'), '$."' || ?3 || '"',
                lower(substr(id_hex, 1, 8) || '-' || substr(id_hex, 9, 4) || '-' || substr(id_hex, 13, 4) || '-'
                      || substr(id_hex, 17, 4) || '-' || substr(id_hex, 21))), body
FROM  (SELECT *, hex(message_id) AS id_hex FROM waybill_failed
       WHERE  id = ?4 AND source = 'worker' AND state = 'failed');

-- name: worker_stats
SELECT transport, sum(retrying), sum(parked), sum(failed)
FROM  (SELECT queue AS transport, count(*) AS retrying,
              count(*) FILTER (WHERE held_until = 9223372036854775807 AND holder IS NULL) AS parked, 0 AS failed
       FROM   waybill_retry
       GROUP  BY queue
       UNION  ALL
       SELECT transport, 0, 0, count(*) FROM waybill_failed
       WHERE  source = 'worker' AND state = 'failed'
       GROUP  BY transport)
GROUP  BY transport
ORDER  BY transport;

-- name: content
SELECT headers, body FROM waybill_failed WHERE id = ?;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM waybill_failed WHERE id = ? AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The row stays, as a record of the missing message.
UPDATE waybill_failed SET state = 'removed', body = x'', headers = '{}',
       removed_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
WHERE  id IN (SELECT value FROM json_each(?)) AND state IN ('skipped', 'failed');

-- name: release_parked
UPDATE waybill_retry SET held = 0, held_until = 0
WHERE  queue = ?1 AND (?2 = '' OR partition_key = ?2) AND held_until = 9223372036854775807 AND holder IS NULL;

-- name: replay
-- Marks entries of workers that are to be replayed, those whose row was deleted by hand included.
UPDATE waybill_failed AS f SET state = 'retrying'
WHERE  id IN (SELECT value FROM json_each(?1))
AND    source = 'worker'
AND   (state = 'failed'
       OR state = 'retrying'
       AND NOT EXISTS (SELECT 1 FROM waybill_retry AS q
                       WHERE q.queue = f.transport AND q.message_id = f.message_id));

-- name: add_replayed
-- After replay: puts the messages into the retry queues, with failures that begin anew. A message that is in
-- its retry queue already stays as it is there.
INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT f.transport, f.message_id, f.message_name, f.partition_key, f.headers, f.body, f.created_at
FROM   waybill_failed AS f
WHERE  f.id IN (SELECT value FROM json_each(?1)) AND f.source = 'worker' AND f.state = 'retrying'
ORDER  BY f.id
ON     CONFLICT (queue, message_id) DO NOTHING;
