-- mariadb shop --init-command="SET @account = 'acc-7'" < mysql.sql
SET NAMES utf8mb4;

START TRANSACTION;

UPDATE account SET balance = balance + 1 WHERE id = @account;

-- Last, because the lock on the key is held from here to COMMIT. Without such
-- an account the body is NULL, which is refused: the client stops.
CALL waybill_dispatch('account.credited', @account, '{}',
                      (SELECT JSON_OBJECT('account', id, 'balance', balance) FROM account WHERE id = @account));

COMMIT;
