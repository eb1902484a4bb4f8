-- name: add
-- One row of a minute. Those of other processes add up.
INSERT INTO public.waybill_history AS h (
       transport, message_name, handler, minute, dispatched, published, refused, handled, failed, retried,
       duplicates, skipped, publish_micros, handling_micros, within_1ms, within_2ms, within_5ms,
       within_10ms, within_20ms, within_50ms, within_100ms, within_200ms, within_500ms, within_1s,
       within_2s, within_5s, within_10s, within_30s, within_1m, within_5m, within_15m, within_1h,
       within_6h, longer)
VALUES (
       $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
       $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34)
ON CONFLICT (transport, message_name, handler, minute) DO UPDATE SET
       dispatched = h.dispatched + excluded.dispatched,
       published = h.published + excluded.published,
       refused = h.refused + excluded.refused,
       handled = h.handled + excluded.handled,
       failed = h.failed + excluded.failed,
       retried = h.retried + excluded.retried,
       duplicates = h.duplicates + excluded.duplicates,
       skipped = h.skipped + excluded.skipped,
       publish_micros = h.publish_micros + excluded.publish_micros,
       handling_micros = h.handling_micros + excluded.handling_micros,
       within_1ms = h.within_1ms + excluded.within_1ms,
       within_2ms = h.within_2ms + excluded.within_2ms,
       within_5ms = h.within_5ms + excluded.within_5ms,
       within_10ms = h.within_10ms + excluded.within_10ms,
       within_20ms = h.within_20ms + excluded.within_20ms,
       within_50ms = h.within_50ms + excluded.within_50ms,
       within_100ms = h.within_100ms + excluded.within_100ms,
       within_200ms = h.within_200ms + excluded.within_200ms,
       within_500ms = h.within_500ms + excluded.within_500ms,
       within_1s = h.within_1s + excluded.within_1s,
       within_2s = h.within_2s + excluded.within_2s,
       within_5s = h.within_5s + excluded.within_5s,
       within_10s = h.within_10s + excluded.within_10s,
       within_30s = h.within_30s + excluded.within_30s,
       within_1m = h.within_1m + excluded.within_1m,
       within_5m = h.within_5m + excluded.within_5m,
       within_15m = h.within_15m + excluded.within_15m,
       within_1h = h.within_1h + excluded.within_1h,
       within_6h = h.within_6h + excluded.within_6h,
       longer = h.longer + excluded.longer;

-- name: prune
-- Rows that another session has locked are for the next time.
DELETE FROM public.waybill_history
WHERE  (transport, message_name, handler, minute) IN (
       SELECT transport, message_name, handler, minute FROM public.waybill_history
       WHERE  minute < $1
       ORDER  BY minute
       LIMIT  $2
       FOR    UPDATE SKIP LOCKED);

-- name: by_step
-- All messages, summed up for steps of some minutes.
SELECT '', '', '', minute / $1::bigint * $1::bigint AS step,
       sum(dispatched), sum(published), sum(refused), sum(handled), sum(failed), sum(retried),
       sum(duplicates), sum(skipped), sum(publish_micros), sum(handling_micros), sum(within_1ms),
       sum(within_2ms), sum(within_5ms), sum(within_10ms), sum(within_20ms), sum(within_50ms),
       sum(within_100ms), sum(within_200ms), sum(within_500ms), sum(within_1s), sum(within_2s),
       sum(within_5s), sum(within_10s), sum(within_30s), sum(within_1m), sum(within_5m), sum(within_15m),
       sum(within_1h), sum(within_6h), sum(longer)
FROM   public.waybill_history
WHERE  transport = '' AND message_name = '' AND handler = '' AND minute >= $2 AND minute < $3
GROUP  BY step
ORDER  BY step;

-- name: by_series
SELECT transport, message_name, handler, min(minute),
       sum(dispatched), sum(published), sum(refused), sum(handled), sum(failed), sum(retried),
       sum(duplicates), sum(skipped), sum(publish_micros), sum(handling_micros), sum(within_1ms),
       sum(within_2ms), sum(within_5ms), sum(within_10ms), sum(within_20ms), sum(within_50ms),
       sum(within_100ms), sum(within_200ms), sum(within_500ms), sum(within_1s), sum(within_2s),
       sum(within_5s), sum(within_10s), sum(within_30s), sum(within_1m), sum(within_5m), sum(within_15m),
       sum(within_1h), sum(within_6h), sum(longer)
FROM   public.waybill_history
WHERE  minute >= $1 AND minute < $2 AND transport <> ''
GROUP  BY transport, message_name, handler
ORDER  BY transport, message_name, handler;
