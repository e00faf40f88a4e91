WITH moved AS (
  INSERT INTO ${table}
    (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
  SELECT d.p, d.v1, d.n, d.k, d.i, d.v, d.t, d.e
  FROM jsonb_to_recordset(CAST(:doc AS jsonb))
    AS d(p text, v1 text, n text, k text, i text, v jsonb, t bigint, e bigint)
  -- What the new version has written meanwhile is newer.
  ON CONFLICT (project, environment, namespace, id) DO NOTHING
  RETURNING record_kind
)
SELECT record_kind, count(*) FROM moved GROUP BY record_kind
