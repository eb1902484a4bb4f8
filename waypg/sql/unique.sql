-- name: lock
-- The message that has a key. The row is locked until the transaction ends, so that others with the key
-- wait. That of a free key has expired: should the transaction lose its messages, the key is free.
INSERT INTO public.waybill_unique AS u (dedup_key, message_id, expires_at)
VALUES ($1, '00000000-0000-0000-0000-000000000000', '-infinity')
ON     CONFLICT (dedup_key) DO UPDATE SET dedup_key = excluded.dedup_key
RETURNING message_id, expires_at > clock_timestamp();

-- name: confirm
-- Gives a locked key to a message, for $3 seconds.
UPDATE public.waybill_unique
SET    message_id = $2::uuid, expires_at = clock_timestamp() + make_interval(secs => $3::float8)
WHERE  dedup_key = $1;

-- name: prune
-- A small batch; keys that a dispatcher has locked are for the next one.
DELETE FROM public.waybill_unique
WHERE  dedup_key IN (
       SELECT dedup_key FROM public.waybill_unique
       WHERE  expires_at <= now()
       ORDER  BY expires_at
       LIMIT  $1
       FOR    UPDATE SKIP LOCKED);
