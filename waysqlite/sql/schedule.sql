-- name: list
-- The schedules and the database's time, which decides which ticks are due; the time alone
-- if there are none.
SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER), s.name, s.spec, s.missed, s.done_until, s.last_tick,
       s.next_tick, s.requested_at
FROM  (SELECT 1) AS one
LEFT   JOIN waybill_schedule AS s
ORDER  BY s.name;

-- name: add
INSERT INTO waybill_schedule (name, spec, missed, done_until, last_tick, next_tick, requested_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING;

-- name: replace
-- Of the transactions that send a tick or a request, one finds the row as it was, and the others
-- none.
UPDATE waybill_schedule
SET    spec = ?, missed = ?, done_until = ?, last_tick = ?, next_tick = ?, requested_at = ?
WHERE  name = ? AND spec = ? AND done_until = ? AND requested_at IS ?;

-- name: remove
DELETE FROM waybill_schedule WHERE name = ? AND spec = ? AND done_until = ? AND requested_at IS ?;

-- name: requested
-- The pending request of a schedule, and the database's time.
SELECT requested_at, CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM waybill_schedule WHERE name = ?;

-- name: request
UPDATE waybill_schedule SET requested_at = ? WHERE name = ?;
