WITH clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
)
SELECT d.o, f.inserted_at, f.expires_at, ${returning}
FROM jsonb_to_recordset(CAST(:doc AS jsonb)) AS d(o int, n text, i text)
CROSS JOIN LATERAL (
  SELECT t.value, t.inserted_at, t.expires_at
  FROM ${table} AS t
  WHERE t.project = :project AND t.environment = :environment
    AND t.namespace = d.n AND t.id = d.i
    AND (t.expires_at IS NULL OR t.expires_at > (SELECT ms FROM clock))
  OFFSET 0
) AS f
