-- name: claim
-- Remembers a handler's effect in the handler's own transaction. No row changed
-- means that it has happened before.
INSERT INTO public.waybill_inbox (handler, dedup_key, message_id)
VALUES ($1, $2, $3::uuid) ON CONFLICT (handler, dedup_key) DO NOTHING;

-- name: seen
SELECT EXISTS (SELECT 1 FROM public.waybill_inbox WHERE handler = $1 AND dedup_key = $2);

-- name: stats
SELECT handler, count(*), min(processed_at), max(processed_at)
FROM   public.waybill_inbox
GROUP  BY handler
ORDER  BY handler;

-- name: lookup
SELECT handler, dedup_key, message_id, processed_at FROM public.waybill_inbox
WHERE  message_id = $1::uuid OR dedup_key = $2 ORDER BY processed_at, handler;

-- name: count_older
SELECT count(*) FROM public.waybill_inbox WHERE processed_at < now() - make_interval(secs => $1::float8);

-- name: prune
-- A small batch, so that handlers wait for milliseconds; rows that another session
-- has locked are for the next one.
DELETE FROM public.waybill_inbox
WHERE  (handler, dedup_key) IN (
       SELECT handler, dedup_key FROM public.waybill_inbox
       WHERE  processed_at < now() - make_interval(secs => $1::float8)
       ORDER  BY processed_at
       LIMIT  $2
       FOR    UPDATE SKIP LOCKED);
