-- How keys are parked, messages skipped, and parked keys released. See
-- docs/schema.md.

-- name: followers
-- Up to ?3 rows of each key whose head is in the list ?2, without the heads and in
-- order: one look through the ?4 ids after the first of them.
SELECT id, partition_key
FROM  (SELECT id, partition_key, row_number() OVER (PARTITION BY partition_key ORDER BY id) AS nth
       FROM   waybill_outbox
       WHERE  lane = ?1 AND id > (SELECT min(value) FROM json_each(?2)) AND id <= (SELECT min(value) FROM json_each(?2)) + ?4
       AND    id NOT IN (SELECT value FROM json_each(?2))
       AND    partition_key IN (SELECT partition_key FROM waybill_outbox WHERE id IN (SELECT value FROM json_each(?2))))
WHERE  nth <= ?3
ORDER  BY id;

-- name: park
-- After block. A parked key is never due: this is 9999-12-31.
UPDATE waybill_outbox_blocked SET state = 'parked', next_attempt_at = 253402214400000000, release_at = NULL
WHERE  lane = ?1 AND partition_key = ?2 AND row_id = 0;

-- name: keep
-- After block: copies rows of the outbox, which are deleted in the same transaction.
-- One that was refused brings along what is said of it.
INSERT INTO waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error)
SELECT l.name, ?1, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       iif(o.message_id = b.message_id, b.failures, 0), iif(o.message_id = b.message_id, b.first_failed_at, NULL),
       CAST(unixepoch('subsec') * 1000000 AS INTEGER), iif(o.message_id = b.message_id, b.last_error, '')
FROM   waybill_outbox AS o JOIN waybill_outbox_lane AS l ON l.id = o.lane
       JOIN waybill_outbox_blocked AS b ON b.lane = o.lane AND b.partition_key = o.partition_key AND b.row_id = iif(o.partition_key = '', o.id, 0)
WHERE  o.id IN (SELECT value FROM json_each(?2))
ORDER  BY o.id;

-- name: any_releasing
-- The lane of a transport that has released keys which are due.
SELECT l.id FROM waybill_outbox_lane AS l
WHERE  l.name = ?1 AND EXISTS (SELECT 1 FROM waybill_outbox_blocked AS b WHERE b.lane = l.id AND b.release_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER));

-- name: releasing
-- Released keys that are due, and which of their rows was refused last.
SELECT partition_key, message_id, failures FROM waybill_outbox_blocked
WHERE  lane = ?1 AND release_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)
ORDER  BY release_at, partition_key LIMIT ?2;

-- name: claim_releasing
-- The oldest parked rows of a key. The caller stops reading when it has enough bytes.
SELECT id, message_id, message_name, headers, body, created_at FROM waybill_failed
WHERE  transport = ?1 AND partition_key = ?2 AND state = 'parked'
ORDER  BY id LIMIT ?3;

-- name: delete_failed
DELETE FROM waybill_failed WHERE id IN (SELECT value FROM json_each(?)) AND state = 'parked';

-- name: end_release
-- A key that has nothing parked any more goes on in the outbox.
DELETE FROM waybill_outbox_blocked
WHERE  lane = ?1 AND partition_key = ?3 AND row_id = 0 AND release_at IS NOT NULL
AND    NOT EXISTS (SELECT 1 FROM waybill_failed WHERE transport = ?2 AND partition_key = ?3 AND state = 'parked');

-- name: retry_release
-- A parked row was refused.
UPDATE waybill_outbox_blocked SET message_id = ?3, message_name = ?4,
       failures = iif(message_id = ?3, failures + 1, 1), policy = ?5, last_error = ?6,
       release_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?7
WHERE  lane = ?1 AND partition_key = ?2 AND row_id = 0;

-- name: failed_again
-- After retry_release, for the row itself: it stays parked, or is skipped.
UPDATE waybill_failed AS f SET state = ?2, failures = b.failures, last_error = b.last_error,
       first_failed_at = coalesce(f.first_failed_at, CAST(unixepoch('subsec') * 1000000 AS INTEGER)), failed_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
FROM   waybill_outbox_blocked AS b
WHERE  f.id = ?1 AND b.lane = ?3 AND b.partition_key = f.partition_key AND b.row_id = 0;

-- name: list
-- Without bodies. The list ?5 of numbers is null or empty for all.
SELECT id, state, transport, message_name, partition_key, message_id, created_at, failures, first_failed_at, failed_at, last_error, removed_at, length(body)
FROM   waybill_failed
WHERE  iif(?1 = '', state <> 'removed', state = ?1) AND (?2 = '' OR transport = ?2) AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR message_name = ?4)
AND    (?5 IN ('null', '[]') OR id IN (SELECT value FROM json_each(?5))) AND id > ?6
ORDER  BY id LIMIT ?7;

-- name: content
SELECT headers, body FROM waybill_failed WHERE id = ?;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM waybill_failed WHERE id = ? AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The rest stays, so that it is known what is missing. A relay may have those of a
-- key that is being released in hand.
UPDATE waybill_failed AS f SET state = 'removed', body = x'', headers = '{}', removed_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
WHERE  f.id IN (SELECT value FROM json_each(?)) AND (f.state = 'skipped' OR f.state = 'parked' AND NOT EXISTS (
       SELECT 1 FROM waybill_outbox_lane AS l JOIN waybill_outbox_blocked AS b ON b.lane = l.id
       WHERE  l.name = f.transport AND b.partition_key = f.partition_key AND b.row_id = 0 AND b.state = 'releasing'));

-- name: any_failed
SELECT EXISTS (SELECT 1 FROM waybill_failed WHERE state <> 'removed') OR EXISTS (SELECT 1 FROM waybill_outbox_blocked WHERE state <> 'retrying');
