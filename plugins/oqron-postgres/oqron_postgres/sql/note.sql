INSERT INTO ${meta} AS m (key, value)
VALUES ('v1', CAST(:doc AS jsonb))
ON CONFLICT (key) DO UPDATE SET value = excluded.value
RETURNING m.key
