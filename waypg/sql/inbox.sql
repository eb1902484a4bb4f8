-- name: claim
-- Remembers a handler's effect in the handler's own transaction. No row changed
-- means that it has happened before. The transaction gets an idle timeout of $4
-- milliseconds, unless it has a shorter one: the row of a frozen process must not
-- hold up its successor for ever. Without $4 it keeps its own.
INSERT INTO public.waybill_inbox (handler, dedup_key, message_id)
SELECT $1, $2, $3::uuid
WHERE  $4::bigint IS NULL
OR     set_config('idle_in_transaction_session_timeout', least($4::bigint, nullif(1000 * extract(epoch FROM
           current_setting('idle_in_transaction_session_timeout')::interval), 0))::bigint::text, true) <> ''
ON     CONFLICT (handler, dedup_key) DO NOTHING;

-- name: seen
SELECT EXISTS (SELECT 1 FROM public.waybill_inbox WHERE handler = $1 AND dedup_key = $2);

-- name: stats
SELECT handler, count(*), min(processed_at), max(processed_at)
FROM   public.waybill_inbox
GROUP  BY handler
ORDER  BY handler;

-- name: lookup
-- By message id, or by idempotency key under any message name (k:NAME/KEY). The handlers and names that there
-- are, each found behind the one before, make the key an entry of the primary key: 0 follows the slash.
WITH RECURSIVE seen (handler, dedup_key) AS (
   (SELECT i.handler, i.dedup_key FROM public.waybill_inbox AS i ORDER BY i.handler, i.dedup_key LIMIT 1)
    UNION  ALL
    SELECT f.handler, f.dedup_key
    FROM   seen AS s,
           LATERAL (SELECT i.handler, i.dedup_key FROM public.waybill_inbox AS i
                    WHERE (i.handler, i.dedup_key)
                          >= (CASE WHEN s.dedup_key < 'k;' THEN s.handler ELSE s.handler || chr(1) END,
                              CASE WHEN s.dedup_key < 'k:' THEN 'k:'
                                   WHEN s.dedup_key < 'k;' THEN split_part(s.dedup_key, '/', 1) || '0'
                                   ELSE '' END)
                    ORDER  BY i.handler, i.dedup_key
                    LIMIT  1) AS f)
SELECT i.handler, i.dedup_key, i.message_id, i.processed_at
FROM   public.waybill_inbox AS i
WHERE  i.message_id = $1::uuid
UNION
SELECT f.handler, f.dedup_key, f.message_id, f.processed_at
FROM   seen AS s,
       LATERAL (SELECT i.handler, i.dedup_key, i.message_id, i.processed_at FROM public.waybill_inbox AS i
                WHERE  i.handler = s.handler AND i.dedup_key = split_part(s.dedup_key, '/', 1) || '/' || $2
                LIMIT  1) AS f
WHERE  s.dedup_key >= 'k:' AND s.dedup_key < 'k;'
ORDER  BY processed_at, handler;

-- name: entries
-- The latest entries behind ($1, $2, $3), newest first, of handler $4 or of all. $6 entries are looked at.
SELECT h.handler, h.dedup_key, h.message_id, h.processed_at
FROM  (SELECT i.handler, i.dedup_key, i.message_id, i.processed_at
       FROM   public.waybill_inbox AS i
       WHERE (i.processed_at, i.handler, i.dedup_key) < ($1::timestamptz, $2::text, $3::text)
       ORDER  BY i.processed_at DESC, i.handler DESC, i.dedup_key DESC
       LIMIT  $6) AS h
WHERE  $4::text IN ('', h.handler)
ORDER  BY h.processed_at DESC, h.handler DESC, h.dedup_key DESC
LIMIT  $5;

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

-- name: record_retention
-- The longest retention of an application counts, in seconds.
INSERT INTO public.waybill_meta AS m (name, value)
VALUES ('inbox_retention', $1::bigint::text)
ON     CONFLICT (name) DO UPDATE SET value = excluded.value
WHERE  m.value::bigint < excluded.value::bigint;

-- name: set_retention
INSERT INTO public.waybill_meta (name, value)
VALUES ('inbox_retention', $1::bigint::text)
ON     CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: retention
SELECT coalesce((SELECT value::bigint FROM public.waybill_meta WHERE name = 'inbox_retention'), 0);
