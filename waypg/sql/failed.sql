-- Dead letters: messages that were skipped.

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id, created_at, failures, first_failed_at,
       failed_at, last_error, removed_at, octet_length(body)
FROM   public.waybill_failed
WHERE  CASE WHEN $1::text = '' THEN state <> 'removed' ELSE state = $1 END
AND    ($2::text = '' OR transport = $2)
AND    ($3::text = '' OR partition_key = $3)
AND    ($4::text = '' OR message_name = $4)
AND    ($5::bigint[] IS NULL OR id = ANY ($5))
AND    id > $6
ORDER  BY id
LIMIT  $7;

-- name: content
SELECT headers, body FROM public.waybill_failed WHERE id = $1;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM public.waybill_failed WHERE id = $1 AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The row stays, as a record of the missing message.
UPDATE public.waybill_failed SET state = 'removed', body = '', headers = '{}', removed_at = clock_timestamp()
WHERE  id = ANY ($1::bigint[]) AND state = 'skipped';
