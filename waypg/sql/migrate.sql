-- The record of migrations in the table meta.

-- name: lock
-- One process at a time changes the tables, and waits for their users at most for a while.
SELECT set_config('lock_timeout', $1::text, true), pg_advisory_xact_lock($2::int, -2);

-- name: any_schema
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1);

-- name: any_table
-- Whether there are tables, and one of them of which this role sees no row: it has row level security and no
-- policy. The name without "meta" is the prefix.
SELECT to_regclass('public.waybill_meta') IS NOT NULL,
       (SELECT min(t.relname::text)
        FROM   pg_class AS m
        JOIN   pg_class AS t ON t.relnamespace = m.relnamespace
                            AND starts_with(t.relname::text, left(m.relname::text, -4))
        WHERE  m.oid = to_regclass('public.waybill_meta') AND t.relrowsecurity AND row_security_active(t.oid)
        AND    NOT EXISTS (SELECT 1 FROM pg_policy AS p WHERE p.polrelid = t.oid));

-- name: version
SELECT value
FROM   public.waybill_meta
WHERE  name = 'schema_version';

-- name: note_version
-- A number in the place of VERSION.
INSERT INTO public.waybill_meta (name, value)
VALUES ('schema_version', 'VERSION')
ON     CONFLICT (name) DO UPDATE SET value = excluded.value;
