SELECT d.n, d.i
FROM jsonb_to_recordset(CAST(:doc AS jsonb)) AS d(n text, i text)
WHERE EXISTS (
  SELECT FROM ${kv} AS k
  WHERE k.namespace = d.n AND k.id = d.i
)
