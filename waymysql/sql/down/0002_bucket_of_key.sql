/*!80000 DROP PROCEDURE IF EXISTS app.waybill_insert */;

CREATE /*M! OR REPLACE */ PROCEDURE app.waybill_insert(IN p_transport TEXT CHARACTER SET utf8mb4, IN p_name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, IN p_key TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
                                    IN p_headers LONGTEXT CHARACTER SET utf8mb4, IN p_body LONGBLOB, OUT p_id CHAR(36) CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_lanes INT;
    DECLARE v_lane SMALLINT;
    DECLARE v_bucket SMALLINT DEFAULT -1;
    DECLARE v_hex CHAR(32) CHARACTER SET ascii;
    DECLARE v_n INT DEFAULT 0;
    DECLARE v_error VARCHAR(128) CHARACTER SET utf8mb4;
    SELECT COUNT(*), MIN(l.id) INTO v_lanes, v_lane FROM app.waybill_outbox_lane AS l WHERE p_transport IS NULL OR l.name = p_transport;
    IF p_key IS NULL OR p_headers IS NULL OR p_body IS NULL THEN
        SET v_error = 'waybill: key, headers and body must not be NULL; an unordered message has the key ''''';
    ELSEIF v_lanes > 1 THEN
        SET v_error = 'waybill: there are several transports: CALL waybill_dispatch_to(transport, name, key, headers, body)';
    ELSEIF v_lanes = 0 THEN
        SET v_error = CONCAT('waybill: unknown transport ', COALESCE(LEFT(p_transport, 60), ''), ', see waybill_outbox_lane');
    ELSEIF p_name IS NULL OR LENGTH(p_name) NOT BETWEEN 1 AND 190 OR p_name REGEXP '[^A-Za-z0-9._-]' THEN
        SET v_error = CONCAT('waybill: ', COALESCE(LEFT(p_name, 40), 'NULL'), ' is not a message name: 1 to 190 letters, digits, . _ and -');
    ELSEIF LENGTH(p_key) > 255 THEN
        SET v_error = CONCAT('waybill: the key has ', LENGTH(p_key), ' bytes, allowed are 255');
    ELSEIF LOCATE(CHAR(0 USING utf8mb4), p_key) > 0 THEN
        SET v_error = 'waybill: the key has a NUL character';
    ELSEIF NOT JSON_VALID(p_headers) THEN
        SET v_error = 'waybill: headers must be a JSON object';
    ELSEIF JSON_TYPE(p_headers) <> 'OBJECT' THEN
        SET v_error = 'waybill: headers must be a JSON object';
    ELSEIF LENGTH(p_headers) > 65536 THEN
        SET v_error = CONCAT('waybill: headers have ', LENGTH(p_headers), ' bytes, allowed are 65536');
    END IF;
    WHILE v_error IS NULL AND v_n < JSON_LENGTH(p_headers) DO
        IF JSON_TYPE(JSON_EXTRACT(JSON_EXTRACT(p_headers, '$.*'), CONCAT('$[', v_n, ']'))) <> 'STRING' THEN
            SET v_error = 'waybill: the values of headers must be strings, such as {"tenant": "acme"}';
        END IF;
        SET v_n = v_n + 1;
    END WHILE;
    IF v_error IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_error;
    END IF;
    -- UUIDv7 of RFC 9562: 48 bits of milliseconds, version, random bits.
    SET v_hex = LOWER(CONCAT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000), 12, '0'),
                             LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 20)));
    SET v_hex = INSERT(INSERT(v_hex, 13, 1, '7'), 17, 1, SUBSTRING('89ab', 1 + FLOOR(RAND() * 4), 1));
    IF LENGTH(p_key) = 0 THEN
        INSERT INTO app.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body)
        VALUES (v_lane, -1, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
    ELSE
        SET v_bucket = CONV(LEFT(SHA2(p_key, 256), 4), 16, 10) % (SELECT m.value FROM app.waybill_meta AS m WHERE m.name = 'buckets');
        INSERT INTO app.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body)
        VALUES ((SELECT g.lane FROM app.waybill_outbox_gate AS g WHERE g.lane = v_lane AND g.bucket = v_bucket FOR UPDATE),
                v_bucket, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
    END IF;
    SET p_id = INSERT(INSERT(INSERT(INSERT(v_hex, 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-');
END;

ALTER TABLE app.waybill_outbox COMMENT = '';
