-- Make ready what is under a lapsed lease.
-- KEYS: ready, leased, ids, wake, nothing (a key that never is), paused
-- ARGV: limit, channel, queue
-- Answer: the ids, those that lapsed first in front

-- needs: _clock
local limit = tonumber(ARGV[1])
local answer = {}
redis.call('DEL', KEYS[5])
while #answer < limit do
  local lapsed = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0,
    math.min(500, limit - #answer))
  if #lapsed == 0 then break end
  local known = redis.call('HMGET', KEYS[3], unpack(lapsed))
  local scores, states = {}, {}
  for i = 1, #lapsed do
    if known[i] then
      local seq, priority, deliveries = string.match(known[i], '^.(%d+)|(-?%d+)|(%d+)|')
      scores[#scores + 1] = priority
      scores[#scores + 1] = seq .. lapsed[i]
      states[#states + 1] = lapsed[i]
      states[#states + 1] = 'r' .. seq .. '|' .. priority .. '|' .. deliveries .. '||'
      answer[#answer + 1] = lapsed[i]
    end
  end
  redis.call('ZREM', KEYS[2], unpack(lapsed))
  if #scores > 0 then
    redis.call('ZADD', KEYS[1], unpack(scores))
    redis.call('HSET', KEYS[3], unpack(states))
  end
end
if #answer > 0 and redis.call('EXISTS', KEYS[6]) == 0 and redis.call('DEL', KEYS[4]) == 1 then
  redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return answer
