SELECT d.k, count(*)
FROM jsonb_to_recordset(CAST(:doc AS jsonb)) AS d(p text, v1 text, n text, k text, i text)
CROSS JOIN LATERAL (
  SELECT 1
  FROM ${table} AS t
  WHERE t.project = d.p AND t.environment = d.v1
    AND t.namespace = d.n AND t.id = d.i
  OFFSET 0
) AS f
GROUP BY d.k
