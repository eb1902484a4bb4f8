-- name: add
-- One row of a minute. Those of other processes add up.
INSERT INTO app.waybill_history (
       transport, message_name, handler, minute, dispatched, published, refused, handled, failed, retried,
       duplicates, skipped, publish_micros, handling_micros, within_1ms, within_2ms, within_5ms,
       within_10ms, within_20ms, within_50ms, within_100ms, within_200ms, within_500ms, within_1s,
       within_2s, within_5s, within_10s, within_30s, within_1m, within_5m, within_15m, within_1h,
       within_6h, longer)
VALUES (
       ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE
       dispatched = dispatched + VALUES(dispatched),
       published = published + VALUES(published),
       refused = refused + VALUES(refused),
       handled = handled + VALUES(handled),
       failed = failed + VALUES(failed),
       retried = retried + VALUES(retried),
       duplicates = duplicates + VALUES(duplicates),
       skipped = skipped + VALUES(skipped),
       publish_micros = publish_micros + VALUES(publish_micros),
       handling_micros = handling_micros + VALUES(handling_micros),
       within_1ms = within_1ms + VALUES(within_1ms),
       within_2ms = within_2ms + VALUES(within_2ms),
       within_5ms = within_5ms + VALUES(within_5ms),
       within_10ms = within_10ms + VALUES(within_10ms),
       within_20ms = within_20ms + VALUES(within_20ms),
       within_50ms = within_50ms + VALUES(within_50ms),
       within_100ms = within_100ms + VALUES(within_100ms),
       within_200ms = within_200ms + VALUES(within_200ms),
       within_500ms = within_500ms + VALUES(within_500ms),
       within_1s = within_1s + VALUES(within_1s),
       within_2s = within_2s + VALUES(within_2s),
       within_5s = within_5s + VALUES(within_5s),
       within_10s = within_10s + VALUES(within_10s),
       within_30s = within_30s + VALUES(within_30s),
       within_1m = within_1m + VALUES(within_1m),
       within_5m = within_5m + VALUES(within_5m),
       within_15m = within_15m + VALUES(within_15m),
       within_1h = within_1h + VALUES(within_1h),
       within_6h = within_6h + VALUES(within_6h),
       longer = longer + VALUES(longer);

-- name: prune
DELETE FROM app.waybill_history
WHERE  minute < ?
LIMIT  ?;

-- name: by_step
-- All messages, summed up for steps of some minutes.
SELECT '', '', '', minute DIV size * size AS step,
       sum(dispatched), sum(published), sum(refused), sum(handled), sum(failed), sum(retried),
       sum(duplicates), sum(skipped), sum(publish_micros), sum(handling_micros), sum(within_1ms),
       sum(within_2ms), sum(within_5ms), sum(within_10ms), sum(within_20ms), sum(within_50ms),
       sum(within_100ms), sum(within_200ms), sum(within_500ms), sum(within_1s), sum(within_2s),
       sum(within_5s), sum(within_10s), sum(within_30s), sum(within_1m), sum(within_5m), sum(within_15m),
       sum(within_1h), sum(within_6h), sum(longer)
FROM   app.waybill_history
JOIN   (SELECT CAST(? AS SIGNED) AS size) AS s
WHERE  transport = '' AND message_name = '' AND handler = '' AND minute >= ? AND minute < ?
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
FROM   app.waybill_history
WHERE  minute >= ? AND minute < ? AND transport <> ''
GROUP  BY transport, message_name, handler
ORDER  BY transport, message_name, handler;
