# DATABASE_URL=postgres://localhost/shop python3 postgres.py ACCOUNT [TIMES]
import json
import os
import sys

import psycopg2


def credit(db, account):
    with db, db.cursor() as cur:  # commits, or rolls back if something is raised
        cur.execute("UPDATE account SET balance = balance + 1 WHERE id = %s RETURNING balance", (account,))
        row = cur.fetchone()
        if row is None:
            raise LookupError(f"no account {account}")
        body = json.dumps({"account": account, "balance": row[0]}).encode()

        # Last, because the lock on the key is held from here to the commit. The
        # body goes as bytes: in text, PostgreSQL would take the backslashes of
        # JSON for its own.
        cur.execute("SELECT waybill_dispatch('account.credited', %s, '{}', %s)", (account, psycopg2.Binary(body)))
        return cur.fetchone()[0]


account, times = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
db = psycopg2.connect(os.environ["DATABASE_URL"])
for _ in range(times):
    print(credit(db, account))
db.close()
