-- psql "$DATABASE_URL" -v account=acc-7 -f postgres.sql
\set ON_ERROR_STOP on

BEGIN;

UPDATE account SET balance = balance + 1 WHERE id = :'account';

-- Last, because the lock on the key is held from here to COMMIT. The body is
-- bytea: convert_to, unlike a cast, leaves backslashes alone.
SELECT waybill_dispatch('account.credited', id, '{}',
                        convert_to(json_build_object('account', id, 'balance', balance)::text, 'UTF8'))
FROM   account
WHERE  id = :'account';

COMMIT;
