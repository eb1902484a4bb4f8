-- name: list
-- The schedules and the database's time, which decides which ticks are due; the time alone
-- if there are none.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), COALESCE(s.name, ''),
       COALESCE(s.spec, ''), COALESCE(s.missed, ''),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.done_until),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.last_tick),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.next_tick),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.requested_at)
FROM  (SELECT 1 AS one) AS one
LEFT   JOIN app.waybill_schedule AS s ON TRUE
ORDER  BY s.name;

-- name: add
INSERT INTO app.waybill_schedule (name, spec, missed, done_until, last_tick, next_tick, requested_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: replace
-- Of the transactions that send a tick or a request, one finds the row as it was, and the
-- others, which wait for its commit, find none.
UPDATE app.waybill_schedule
SET    spec = ?, missed = ?, done_until = ?, last_tick = ?, next_tick = ?, requested_at = ?
WHERE  name = ? AND spec = ? AND done_until = ? AND requested_at <=> ?;

-- name: remove
DELETE FROM app.waybill_schedule
WHERE  name = ? AND spec = ? AND done_until = ? AND requested_at <=> ?;

-- name: requested
-- The pending request of a schedule, and the database's time. The lock keeps the request from
-- being sent, and other operators from making one, until the end of the transaction.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', requested_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM   app.waybill_schedule
WHERE  name = ?
FOR    UPDATE;

-- name: request
UPDATE app.waybill_schedule SET requested_at = ? WHERE name = ?;
