CREATE TABLE IF NOT EXISTS products (
    id        integer PRIMARY KEY,
    available integer NOT NULL CHECK (available >= 0)
);

CREATE TABLE IF NOT EXISTS orders (
    id        integer PRIMARY KEY,
    customer  text NOT NULL,
    email     text NOT NULL,
    cents     integer NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No constraint helps the handlers of these two: a second effect is a second row.
CREATE TABLE IF NOT EXISTS confirmations (
    order_id     integer NOT NULL,
    language     text NOT NULL,
    confirmed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS payments (
    order_id integer NOT NULL,
    cents    integer NOT NULL
);
