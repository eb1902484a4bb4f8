-- name: list
-- The schedules and the database's time, which decides which ticks are due; the time alone if there are none.
SELECT clock_timestamp(), coalesce(s.name, ''), coalesce(s.spec, ''), coalesce(s.missed, ''),
       coalesce(s.done_until, now()), s.last_tick, coalesce(s.next_tick, now()), s.requested_at
FROM  (SELECT 1) AS one
LEFT   JOIN public.waybill_schedule AS s ON true
ORDER  BY s.name;

-- name: add
INSERT INTO public.waybill_schedule (name, spec, missed, done_until, last_tick, next_tick, requested_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON     CONFLICT (name) DO NOTHING;

-- name: replace
-- Of the transactions that send a tick or a request, one finds the row as it was ($9 to $11), and the others,
-- which wait for its commit, find none. With $8 the server ends the transaction of a process that is silent
-- for so many milliseconds: a frozen one would hold up the others for ever.
UPDATE public.waybill_schedule
SET    spec = $2, missed = $3, done_until = $4, last_tick = $5, next_tick = $6, requested_at = $7
WHERE  name = $1 AND spec = $9 AND done_until = $10 AND requested_at IS NOT DISTINCT FROM $11
AND   ($8::bigint IS NULL
       OR set_config('idle_in_transaction_session_timeout', least($8::bigint, nullif(1000 * extract(epoch FROM
              current_setting('idle_in_transaction_session_timeout')::interval), 0))::bigint::text, true) <> '');

-- name: remove
DELETE FROM public.waybill_schedule
WHERE  name = $1 AND spec = $2 AND done_until = $3 AND requested_at IS NOT DISTINCT FROM $4;

-- name: requested
-- The pending request of a schedule, and the database's time. The lock keeps the request from being sent, and
-- other operators from making one, until the end of the transaction.
SELECT requested_at, clock_timestamp() FROM public.waybill_schedule WHERE name = $1 FOR UPDATE;

-- name: request
UPDATE public.waybill_schedule SET requested_at = $2 WHERE name = $1;
