-- name: findings
-- One row for each finding: its code and the detail of its sentence. Of other users' sessions only a
-- member of pg_read_all_stats sees the times ($1, $2: seconds). $3 is the size of the pool.
SELECT 'not-durable', format('%s is %s', name, setting)
FROM   pg_settings
WHERE  name IN ('fsync', 'full_page_writes') AND setting = 'off'
UNION  ALL
SELECT 'few-connections', format('max_connections is %s, and one process uses up to %s', setting, $3::int)
FROM   pg_settings
WHERE  name = 'max_connections'
AND    setting::int - current_setting('superuser_reserved_connections')::int < $3
UNION  ALL
SELECT 'autovacuum-off', 'autovacuum is off'
FROM   pg_settings
WHERE  name = 'autovacuum' AND setting = 'off'
UNION  ALL
SELECT 'autovacuum-off', format('the table %s %s', c.oid::regclass,
       CASE WHEN c.reloptions @> '{autovacuum_enabled=false}' THEN 'has autovacuum_enabled = false'
            ELSE 'has lost autovacuum_vacuum_scale_factor = 0' END)
FROM   unnest(ARRAY['public.waybill_outbox'::regclass, 'public.waybill_outbox_unkeyed'::regclass,
                    'public.waybill_queue'::regclass, 'public.waybill_retry'::regclass]) AS t (id)
JOIN   pg_class AS c ON c.oid = t.id
WHERE  c.reloptions @> '{autovacuum_enabled=false}'
OR     NOT coalesce(c.reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
UNION  ALL
SELECT 'idle-transaction', format('session %s (%s) has been idle in its transaction for %s s', pid,
       coalesce(nullif(application_name, ''), 'no application_name'),
       extract(epoch FROM clock_timestamp() - state_change)::int)
FROM   pg_stat_activity
WHERE  datname = current_database() AND state LIKE 'idle in transaction%'
AND    state_change < clock_timestamp() - make_interval(secs => $2) AND pid <> pg_backend_pid()
UNION  ALL
SELECT 'old-transaction', format('session %s (%s) has had a transaction open for %s s', pid,
       coalesce(nullif(application_name, ''), 'no application_name'),
       extract(epoch FROM clock_timestamp() - xact_start)::int)
FROM   pg_stat_activity
WHERE  datname = current_database() AND backend_type = 'client backend'
AND    xact_start < clock_timestamp() - make_interval(secs => $1) AND pid <> pg_backend_pid()
UNION  ALL
SELECT 'old-transaction', format('the prepared transaction %s has waited for %s s', gid,
       extract(epoch FROM clock_timestamp() - prepared)::int)
FROM   pg_prepared_xacts
WHERE  database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1)
UNION  ALL
SELECT 'inactive-slot', format('nobody reads the replication slot %s', slot_name)
FROM   pg_replication_slots
WHERE  NOT active AND (restart_lsn IS NOT NULL OR xmin IS NOT NULL OR catalog_xmin IS NOT NULL);

-- name: changed_tables
-- Tables and sequences that were altered. Ids that a session takes from a cache are not in the order of
-- commits. That of the outbox is refused when the database is opened.
SELECT 'unlogged-table', format('the table %s is unlogged', c.oid::regclass)
FROM   unnest(ARRAY['public.waybill_outbox'::regclass, 'public.waybill_outbox_unkeyed'::regclass,
                    'public.waybill_outbox_blocked'::regclass, 'public.waybill_delayed'::regclass,
                    'public.waybill_failed'::regclass, 'public.waybill_queue'::regclass,
                    'public.waybill_retry'::regclass, 'public.waybill_inbox'::regclass,
                    'public.waybill_unique'::regclass]) AS t (id)
JOIN   pg_class AS c ON c.oid = t.id
WHERE  c.relpersistence <> 'p'
UNION  ALL
SELECT 'sequence-cache', format('the sequence %s of %s caches %s ids',
       s.seqrelid::regclass, d.refobjid::regclass, s.seqcache)
FROM   pg_sequence AS s
JOIN   pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.deptype IN ('a', 'i')
WHERE  s.seqcache > 1
AND    d.refobjid IN ('public.waybill_delayed'::regclass, 'public.waybill_failed'::regclass,
                      'public.waybill_queue'::regclass, 'public.waybill_retry'::regclass);

-- name: missing_indexes
-- Indexes are compared by their columns: their names may have been cut or changed.
SELECT 'missing-index', format('%s (%s)', e.id, e.columns)
FROM  (VALUES ('public.waybill_outbox'::regclass, 'transport, bucket, id', true),
              ('public.waybill_outbox_unkeyed'::regclass, 'transport, held, id', true),
              ('public.waybill_outbox_unkeyed'::regclass, 'transport, message_name, id', false),
              ('public.waybill_outbox_blocked'::regclass, 'transport, route, partition_key, row_id', true),
              ('public.waybill_outbox_blocked'::regclass, 'transport, bucket, partition_key', true),
              ('public.waybill_outbox_blocked'::regclass, 'transport, route', true),
              ('public.waybill_outbox_blocked'::regclass, 'transport, next_attempt_at', false),
              ('public.waybill_failed'::regclass, 'id', true),
              ('public.waybill_failed'::regclass, 'transport, message_id', true),
              ('public.waybill_failed'::regclass, 'partition_key, id', false),
              ('public.waybill_failed'::regclass, 'fingerprint, id', false),
              ('public.waybill_delayed'::regclass, 'id', true),
              ('public.waybill_delayed'::regclass, 'due_at, id', false),
              ('public.waybill_inbox'::regclass, 'handler, dedup_key', true),
              ('public.waybill_inbox'::regclass, 'processed_at', false),
              ('public.waybill_inbox'::regclass, 'message_id', false),
              ('public.waybill_unique'::regclass, 'dedup_key', true),
              ('public.waybill_unique'::regclass, 'expires_at', false),
              ('public.waybill_schedule'::regclass, 'name', true),
              ('public.waybill_history'::regclass, 'transport, message_name, handler, minute', true),
              ('public.waybill_history'::regclass, 'minute', false),
              ('public.waybill_queue'::regclass, 'id', true),
              ('public.waybill_queue'::regclass, 'queue, held_until, id', false),
              ('public.waybill_queue'::regclass, 'queue, partition_key, held, id', false),
              ('public.waybill_retry'::regclass, 'id', true),
              ('public.waybill_retry'::regclass, 'queue, held_until, id', false),
              ('public.waybill_retry'::regclass, 'queue, partition_key, held, id', false),
              ('public.waybill_retry'::regclass, 'queue, message_id', true),
              ('public.waybill_retry'::regclass, 'queue, partition_key, held', false)) AS e (id, columns, is_unique)
WHERE  NOT EXISTS (SELECT 1 FROM pg_index AS i
                   WHERE  i.indrelid = e.id AND i.indisvalid AND i.indisunique >= e.is_unique
                   AND    (SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k)
                           FROM generate_series(1, i.indnkeyatts::int) AS k) = e.columns);

-- name: clock
SELECT clock_timestamp();
