WITH clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
), written AS (
  INSERT INTO ${table} AS t
    (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
  -- What all values have in common is sent once.
  SELECT :project, :environment, d.n, d.k, d.i, CAST(:same AS jsonb) || d.v,
    (SELECT ms FROM clock), d.e
  FROM jsonb_to_recordset(CAST(:doc AS jsonb))
    AS d(n text, k text, i text, v jsonb, e bigint)
  -- What has expired is absent, so it gives way.
  ON CONFLICT (project, environment, namespace, id) DO UPDATE
  SET value = excluded.value,
      record_kind = excluded.record_kind,
      inserted_at = excluded.inserted_at,
      expires_at = excluded.expires_at
  WHERE t.expires_at <= (SELECT ms FROM clock)
  RETURNING t.namespace, t.id
)
SELECT
  (SELECT ms FROM clock),
  -- Only where something stood in the way does the client need to know what.
  CASE
    WHEN count(*) < :size
    THEN coalesce(jsonb_agg(jsonb_build_array(namespace, id)), '[]')::text
  END
FROM written
