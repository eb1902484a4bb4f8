-- The record of migrations in the table meta.

-- name: lock
-- One process at a time changes the tables, and waits for their users at most for a while.
SELECT set_config('lock_timeout', $1::text, true), pg_advisory_xact_lock($2::int, -2);

-- name: any_schema
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1);

-- name: any_table
SELECT to_regclass('public.waybill_meta') IS NOT NULL;

-- name: version
SELECT value
FROM   public.waybill_meta
WHERE  name = 'schema_version';

-- name: note_version
-- A number in the place of VERSION.
INSERT INTO public.waybill_meta (name, value)
VALUES ('schema_version', 'VERSION')
ON     CONFLICT (name) DO UPDATE SET value = excluded.value;
