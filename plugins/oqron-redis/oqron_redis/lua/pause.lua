-- Stop claims.
-- KEYS: paused, and the registry of queues unless it lives in another slot
-- ARGV: queue

local clock = redis.call('TIME')
redis.call('SET', KEYS[1], '1')
if KEYS[2] then
  redis.call('ZADD', KEYS[2], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
end
return 1
