WITH clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
), found AS MATERIALIZED (
  SELECT
    d.o, r.tid, r.inserted_at, r.expires_at, r.value,
    (d.x IS NULL OR NOT EXISTS (
      SELECT FROM jsonb_each(d.x) AS e
      WHERE (r.value -> e.key) IS DISTINCT FROM e.value
    ))
    AND (d.m IS NULL OR NOT r.value ?| d.m) AS ok
  FROM jsonb_to_recordset(CAST(:doc AS jsonb))
    AS d(o int, n text, i text, x jsonb, m text[])
  CROSS JOIN LATERAL (
    SELECT t.ctid AS tid, t.value, t.inserted_at, t.expires_at
    FROM ${table} AS t
    WHERE t.project = :project AND t.environment = :environment
      AND t.namespace = d.n AND t.id = d.i
      AND (t.expires_at IS NULL OR t.expires_at > (SELECT ms FROM clock))
    OFFSET 0
    FOR UPDATE OF t
  ) AS r
), gone AS (
  DELETE FROM ${table} AS t
  WHERE t.ctid = ANY (ARRAY(SELECT f.tid FROM found AS f WHERE f.ok))
  RETURNING t.ctid AS tid
)
-- A row that somebody changed while we waited for its lock has moved out of what this
-- statement can see: found, but not gone. The client asks again for those.
SELECT f.o, f.ok, g.tid IS NOT NULL AS gone, f.inserted_at, f.expires_at, ${returning}
FROM found AS f
LEFT JOIN gone AS g ON g.tid = f.tid
