package main

// benchHelp is the long help of bench.
const benchHelp = `Measure waybill against code written by hand that does the same job on the same servers, in the
same run. There are two yardsticks: ideal has the same columns and sends the same properties as
waybill; bare has a serial id, a name and a body, and the default exchange. Neither keeps order.
Rounds of all sides take turns; a ratio is the median of the rounds'. The command makes a schema (or
tables with a prefix), an exchange and a queue, and removes them.

  files     on SQLite files in a temporary directory, without a server: transactions, middleware, a
            relay and a worker against the same by hand. --case dispatch, middleware, relay, worker
  relay     a relay against ideal and bare: rows are loaded before each round, and count and order
            are checked at the queue after it. --case strict (1000 keys), zipf (1000, some with many
            rows), unique (a key per row), ten-keys, one-key (in place of ideal, a client that waits
            for each confirmation), pipelined (1000), pipelined-one-key; or --keys N, for one
            case of so many keys. --case watched: strict, while ten clients refresh pages of the
            dashboard in the same process each second, against strict without. --case
            one-failing-key: the latency of 999 keys, with two messages a second each for --slice,
            while the broker refuses all of one more, against the same while it takes them; less is
            better. --case hundred-failing-keys: of 900 keys, beside so many. They need RabbitMQ
            3.10
  dispatch  a transaction with a business row and one, two or five messages, against the same with a
            plain insert of the same columns, and with one of bare's; more --buckets are more
            dispatch locks, and fewer transactions that wait. --case one, two, five, beside-relay (8
            writers while a relay drains)
  inbox     a worker with an inbox against loops by hand, with 1, 8 and 32 messages at once or
            --workers, one a transaction; in groups of 50; and groups against one a transaction
  queue     a worker on queue:// in the database, with 10 and 50 handlers at once or --workers,
            against loops by hand that lease a batch, handle it and delete it. --case dispatch (8
            dispatchers, a transaction each message, while it works), dispatch-keyed (--keys),
            handle, handle-keyed (messages loaded before), retry (each message fails once and is
            handled from the retry queue; the time that adds, against that of messages handled at
            once; less is better)
  latency   from a commit to a consumer, 50 messages a second, against a client that publishes after
            its commit, and against bare, which polls every 5 ms; ratios are those of the 99th
            percentiles, and less is better. On PostgreSQL also with a relay that listens, and the
            commits of 64 writers when they are announced (notify) against when they are not
  claim     what grows with the rows that wait or have passed, against the growth of a plain claim;
            less is better. --case growth (--rows waiting against a hundredth), snapshot (a fifth of
            --rows pass while an old snapshot is held; claims and empty polls), memory (of a process
            that relays --rows; on Linux)
  starve    live messages beside a load, against the same without it; less is better. --rows is the
            size of the load. --case released-keys (60,000 parked keys are released; latency of live
            messages, 100 a second), large-delayed (1000 messages of 1 MB fall due at once; time of
            commits), hot-key (60,000 rows of one key; latency of other keys in its bucket),
            waiting-unkeyed (300,000 messages without key wait for a route; idle looks and keyed
            claims), blocked-keys (100,000; the same), retrying-messages (10,000 messages of a
            worker wait for retries in its store, 170 a second, and fail again; latency of others of
            its queue, 100 a second, and its heap), retrying-keys (the third of ten messages of 10
            keys fails; latency of the worker's other keys)
  observe   the cost of observers: a relay, and a worker with an inbox (8 handlers), with each
            observer against none, in messages a second of CPU time, that of servers too; more is
            better, and 1 is free. Each message has a trace, of which one in a hundred is sampled.
            --case prometheus (wayprom), traces (wayotel), history, logs (debug, which is off),
            traces-all (each message is sampled, and its spans are discarded after batching)

--batch, --window, --workers and --buckets change waybill's side, so that tables of them can be
measured; the yardsticks keep their batches of 500.

With --budget relay, dispatch, inbox and queue also print microseconds of CPU time a message, or a
transaction of dispatch, of the command, the database and the broker, on each side: of the processes
that listen on the ports of the DSNs, on this machine. It is Linux's, and what else these servers do
counts.

With --json: {"results": [{"case", "database", "keys", "workers", "ordering", "rate",
"yardstick_rate", "ratio", "bare_rate", "bare_ratio", "min", "max", "rounds", "target", "buckets",
"batch", "window", "rows"}]}; dispatch beside a relay has "relayed_rate", "yardstick_relayed_rate"
and "bare_relayed_rate" too; latency, starve and failing keys have "latency", "yardstick_latency"
and "bare_latency" in place of rates, each with "p50_ms", "p99_ms" and "slowest_ms", failing keys
also "longest_pause_ms" (of any other key), starve "load_published_s", both "max_ratio" or
"max_slowest_ms"; claim and the last two of starve have "growth" and "yardstick_growth", each with
"unit", "from", "to", "factor", and "max_to" or "max_factor" where a limit is wanted. With
--budget: "budget", "yardstick_budget" and "bare_budget", each with "client_us", "database_us" and
"broker_us".`
