-- Remove live runs.
-- KEYS: active, then fields, logs and timeline of each run
-- ARGV: the runs
-- Answer: one digit per run: 1 it was there, 0 it was not

local answer = {}
for i = 1, #ARGV do
  local k = 3 * i - 1
  answer[i] = tostring(redis.call('EXISTS', KEYS[k]))
  redis.call('UNLINK', KEYS[k], KEYS[k + 1], KEYS[k + 2])
  redis.call('ZREM', KEYS[1], ARGV[i])
end
return table.concat(answer)
