CREATE TABLE ticker_leases (
    name         text PRIMARY KEY,
    holder       text NOT NULL,
    epoch        bigint NOT NULL CHECK (epoch > 0),
    expires_at   timestamptz NOT NULL,
    last_tick_at timestamptz
);
