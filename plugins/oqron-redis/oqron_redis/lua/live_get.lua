-- Read live runs.
-- KEYS: fields, logs and timeline of each run
-- Answer: per run its fields, logs and timeline, or nil

local answer = {}
for k = 1, #KEYS, 3 do
  local fields = redis.call('HGETALL', KEYS[k])
  if #fields == 0 then
    answer[#answer + 1] = false
  else
    answer[#answer + 1] = {fields, redis.call('LRANGE', KEYS[k + 1], 0, -1),
      redis.call('LRANGE', KEYS[k + 2], 0, -1)}
  end
end
return answer
