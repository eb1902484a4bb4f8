# DATABASE_URL=mysql://shop@localhost/shop python3 mysql.py ACCOUNT [TIMES]
import json
import os
import sys
from urllib.parse import unquote, urlsplit

import pymysql


def credit(db, account):
    try:
        with db.cursor() as cur:
            cur.execute("UPDATE account SET balance = balance + 1 WHERE id = %s", (account,))
            cur.execute("SELECT balance FROM account WHERE id = %s", (account,))
            row = cur.fetchone()
            if row is None:
                raise LookupError(f"no account {account}")
            body = json.dumps({"account": account, "balance": row[0]}).encode()

            # Last, because the lock on the key is held from here to the commit.
            cur.execute("CALL waybill_dispatch('account.credited', %s, '{}', %s)", (account, body))
            (id,) = cur.fetchone()
        db.commit()
        return id
    except BaseException:
        db.rollback()
        raise


account, times = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
url = urlsplit(os.environ["DATABASE_URL"])
db = pymysql.connect(host=url.hostname, port=url.port or 3306, user=unquote(url.username),
                     password=unquote(url.password or ""), database=url.path[1:], charset="utf8mb4")
for _ in range(times):
    print(credit(db, account))
db.close()
