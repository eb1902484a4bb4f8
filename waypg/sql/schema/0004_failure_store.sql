-- What relays have given up: rows of parked keys, which go out first when their
-- key is released, and messages that were skipped. A removed one keeps its place
-- without body and headers, so that it is known who is missing.
CREATE TABLE public.waybill_failed (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transport       text COLLATE "C" NOT NULL CHECK (transport <> ''),
    state           text NOT NULL CHECK (state IN ('parked', 'skipped', 'removed')),
    message_id      uuid NOT NULL,
    message_name    text COLLATE "C" NOT NULL,
    partition_key   text COLLATE "C" NOT NULL,
    headers         jsonb NOT NULL,
    body            bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    failures        integer NOT NULL,
    first_failed_at timestamptz,
    failed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error      text NOT NULL,
    removed_at      timestamptz
);
CREATE INDEX waybill_failed_by_key ON public.waybill_failed (transport, partition_key, id) WHERE state = 'parked';

-- A parked or releasing key is never due, so that nobody claims its rows from the
-- outbox, also relays of the version before. release_at is when a released one is
-- tried next. The constraint keeps commands of the version before from letting go of
-- a parked key, whose first rows they do not see.
ALTER TABLE public.waybill_outbox_blocked
    ADD COLUMN state text NOT NULL DEFAULT 'retrying',
    ADD COLUMN policy text NOT NULL DEFAULT 'halt',
    ADD COLUMN release_at timestamptz,
    ADD CONSTRAINT waybill_outbox_blocked_state CHECK (
        CASE state WHEN 'retrying' THEN release_at IS NULL
                   WHEN 'parked' THEN release_at IS NULL AND next_attempt_at > '9999-01-01 UTC'
                   WHEN 'releasing' THEN release_at IS NOT NULL AND next_attempt_at > '9999-01-01 UTC'
                   ELSE false END);
CREATE INDEX waybill_outbox_blocked_by_release ON public.waybill_outbox_blocked (lane, release_at) WHERE release_at IS NOT NULL;
